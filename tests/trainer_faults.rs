//! `AdaptiveTrainer`: a fault at every point of a step, and what must hold afterwards.

mod support;

use std::cell::RefCell;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::testing::{Faults, illegal_address};
use candle_headroom::{
    AdaptiveTrainer, BatchPolicy, Cause, Error, GradientAccumulator, Loss, Phase, StepReport,
};
use candle_nn::{AdamW, VarBuilder, VarMap};
use support::transformer::{Config, Transformer};
use support::{ConvNet, Halves, Mlp, Schedule, settle, snapshot};

const STEPS: usize = 2;

type State = Vec<Vec<f64>>;

/// A real model with its data and optimizer, made anew for each run.
trait Job {
    fn new() -> Self;
    fn trained(&self) -> Vec<Var>;
    /// All that a step may change.
    fn state(&self) -> State;
    fn buffers(&self) -> Vec<Tensor> {
        Vec::new()
    }
    fn batch(&self) -> (Tensor, Tensor);
    fn loss(&self, x: &Tensor, y: &Tensor) -> candle_core::Result<Loss>;

    fn trainer(&self, policy: impl BatchPolicy + 'static) -> AdaptiveTrainer<AdamW> {
        let optimizer = AdamW::new_lr(self.trained(), 0.01).unwrap();
        AdaptiveTrainer::builder(self.trained(), optimizer)
            .policy(policy)
            .buffers(&self.buffers())
            .build()
            .unwrap()
    }

    fn step(&self, trainer: &mut AdaptiveTrainer<AdamW>) -> Result<StepReport, Error> {
        trainer.step(&self.batch(), |(x, y), _| self.loss(&x, &y))
    }
}

struct Perceptron(Mlp);

impl Job for Perceptron {
    fn new() -> Self {
        Self(Mlp::new(DType::F32))
    }
    fn trained(&self) -> Vec<Var> {
        self.0.vars.clone()
    }
    fn state(&self) -> State {
        snapshot(&self.0.vars)
    }
    fn batch(&self) -> (Tensor, Tensor) {
        Mlp::data(11, DType::F32)
    }
    fn loss(&self, x: &Tensor, y: &Tensor) -> candle_core::Result<Loss> {
        Ok(self.0.probed_loss(x, y)?.into())
    }
}

impl Job for ConvNet {
    fn new() -> Self {
        Self::new()
    }
    fn trained(&self) -> Vec<Var> {
        self.trained()
    }
    fn state(&self) -> State {
        snapshot(&self.vars) // running statistics included
    }
    fn buffers(&self) -> Vec<Tensor> {
        vec![
            self.norm.running_mean().clone(),
            self.norm.running_var().clone(),
        ]
    }
    fn batch(&self) -> (Tensor, Tensor) {
        ConvNet::data(11)
    }
    fn loss(&self, x: &Tensor, y: &Tensor) -> candle_core::Result<Loss> {
        Ok(candle_headroom::testing::probe(&self.loss(x, y)?)?.into())
    }
}

struct Language {
    vars: Vec<Var>,
    model: Transformer,
}

impl Job for Language {
    fn new() -> Self {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let config = Config {
            context: 6,
            width: 8,
            heads: 2,
            layers: 1,
        };
        let model = Transformer::new(config, vb).unwrap();
        Self {
            vars: settle(&varmap),
            model,
        }
    }
    fn trained(&self) -> Vec<Var> {
        self.vars.clone()
    }
    fn state(&self) -> State {
        snapshot(&self.vars)
    }
    fn batch(&self) -> (Tensor, Tensor) {
        let text = |shift: u32| {
            let bytes = (0..11 * 6).map(|i| (i * 31 + shift) % 256);
            Tensor::from_iter(bytes, &Device::Cpu)
                .unwrap()
                .reshape((11, 6))
                .unwrap()
        };
        (text(0), text(31))
    }
    /// Weighted by tokens: bytes above 127 do not count.
    fn loss(&self, x: &Tensor, y: &Tensor) -> candle_core::Result<Loss> {
        let scores = self.model.forward(x)?.flatten_to(1)?;
        let y = y.flatten_all()?;
        let each = candle_nn::ops::log_softmax(&scores, 1)?.gather(&y.unsqueeze(1)?, 1)?;
        let counts = y.lt(128u32)?.to_dtype(DType::F32)?;
        let sum = (each.squeeze(1)?.neg()? * &counts)?.sum_all()?;
        let weight = f64::from(counts.sum_all()?.to_scalar::<f32>()?);
        Ok(Loss::sum(sum, weight))
    }
}

/// The states after each step of an uninterrupted run with these splits.
fn uninterrupted<J: Job>(splits: &[Vec<usize>]) -> Vec<State> {
    let job = J::new();
    let mut trainer = job.trainer(Schedule::new(&splits.concat()));
    let mut states = Vec::new();
    for split in splits {
        let report = job.step(&mut trainer).unwrap();
        assert_eq!(&report.sizes, split);
        states.push(job.state());
    }
    states
}

fn whole_splits() -> Vec<Vec<usize>> {
    vec![vec![4, 4, 3]; STEPS]
}

/// How many points an uninterrupted run passes.
fn points<J: Job>() -> usize {
    let job = J::new();
    let mut trainer = job.trainer(Halves(4));
    let armed = Faults::at(usize::MAX).arm();
    for _ in 0..STEPS {
        job.step(&mut trainer).unwrap();
    }
    armed.points()
}

/// One exhaustion at every point of every phase: the run goes on, and ends to the bit where an uninterrupted run of the same
/// splits ends.
fn exhaustion_everywhere<J: Job>() {
    let points = points::<J>();
    assert!(points > 40, "{points}");
    for point in 0..points {
        let job = J::new();
        let mut trainer = job.trainer(Halves(4));
        let armed = Faults::at(point).arm();
        let mut splits = Vec::new();
        let mut states = Vec::new();
        let mut retries = 0;
        for step in 0..STEPS {
            let report = job.step(&mut trainer).unwrap();
            assert_eq!(report.step as usize, step + 1);
            assert_eq!(report.sizes.iter().sum::<usize>(), 11, "point {point}");
            retries += report.retries;
            splits.push(report.sizes);
            states.push(job.state());
        }
        assert_eq!(armed.fired(), 1, "point {point}");
        drop(armed);
        assert!(retries <= 1, "point {point}"); // none where the optimizer's preparation failed
        assert_eq!(states, uninterrupted::<J>(&splits), "point {point}");
    }
}

/// Faults that are not cured by smaller micro-batches: the error comes back, nothing has changed, and training goes on.
fn errors_everywhere<J: Job>(error: fn() -> candle_core::Error, check: impl Fn(Error)) {
    let points = points::<J>();
    let expected = uninterrupted::<J>(&whole_splits());
    for point in 0..points {
        let job = J::new();
        let mut trainer = job.trainer(Halves(4));
        let armed = Faults::at(point).failing_with(error).arm();
        let mut errors = 0;
        for state in &expected {
            let before = job.state();
            let report = match job.step(&mut trainer) {
                Ok(report) => report,
                Err(error) => {
                    errors += 1;
                    check(error);
                    assert_eq!(job.state(), before, "point {point}");
                    job.step(&mut trainer).unwrap()
                }
            };
            assert_eq!(report.retries, 0, "point {point}");
            assert_eq!(&job.state(), state, "point {point}");
        }
        assert_eq!((armed.fired(), errors), (1, 1), "point {point}");
    }
}

#[test]
fn exhaustion_at_every_point_perceptron() {
    exhaustion_everywhere::<Perceptron>();
}

#[test]
fn exhaustion_at_every_point_convolution_with_batch_norm() {
    exhaustion_everywhere::<ConvNet>();
}

#[test]
fn exhaustion_at_every_point_transformer_weighted_by_tokens() {
    exhaustion_everywhere::<Language>();
}

#[test]
fn sticky_fault_at_every_point_is_never_retried() {
    let check = |error: Error| match error {
        Error::DeviceFault(fault) => assert_eq!(fault.code, 700),
        Error::WindowLost(_) => panic!("the trainer holds the whole batch: {error}"),
        error => panic!("{error}"),
    };
    errors_everywhere::<Perceptron>(illegal_address, check);
    errors_everywhere::<ConvNet>(illegal_address, check);
}

#[derive(Debug, thiserror::Error)]
#[error("the user's own")]
struct Own;

#[test]
fn any_other_error_at_every_point_comes_back_unchanged() {
    fn own() -> candle_core::Error {
        candle_core::Error::WrappedContext {
            wrapped: Box::new(Own),
            context: "out of memory".into(),
        }
    }
    let check = |error: Error| {
        let Error::Candle(error) = error else {
            panic!("{error}")
        };
        let candle_core::Error::WrappedContext { wrapped, .. } = *error else {
            panic!("{error}")
        };
        assert!(wrapped.is::<Own>());
    };
    errors_everywhere::<Perceptron>(own, check);
    errors_everywhere::<Language>(own, check);
}

/// Exhaustion that does not go away, from every point on.
#[test]
fn lasting_exhaustion_ends_with_an_error_and_no_change() {
    let points = points::<ConvNet>();
    let expected = uninterrupted::<ConvNet>(&whole_splits());
    for point in 0..points {
        let job = <ConvNet as Job>::new();
        let mut trainer = job.trainer(Halves(4));
        let armed = Faults::at(point).times(usize::MAX).arm();
        let mut before = job.state();
        let error = loop {
            match job.step(&mut trainer) {
                Ok(_) => before = job.state(),
                Err(error) => break error,
            }
        };
        assert!(armed.fired() < 64, "point {point}: bounded");
        drop(armed);
        let exhausted = error.resource_exhausted().unwrap();
        assert_eq!(job.state(), before, "point {point}");
        match exhausted.phase.unwrap() {
            Phase::Optimizer => assert_eq!(exhausted.micro_batch, None),
            _ => {
                assert_eq!(exhausted.micro_batch, Some(1), "{exhausted}");
                assert_eq!(exhausted.cause, Cause::NeverFits);
                assert!(!exhausted.remedies.is_empty());
            }
        }
        // And then training goes on, from the same state, by whatever splits.
        let done = trainer.updates() as usize;
        let mut splits = whole_splits()[..done].to_vec();
        while splits.len() < STEPS {
            splits.push(job.step(&mut trainer).unwrap().sizes);
        }
        let states = if splits == whole_splits() {
            expected.clone()
        } else {
            uninterrupted::<ConvNet>(&splits)
        };
        assert_eq!(Some(&job.state()), states.last(), "point {point}");
    }
}

#[test]
fn a_lost_window_is_begun_again_three_times_and_no_more() {
    let job = Perceptron::new();
    let before = job.state();
    let last_var = job.trained().len();
    let mut trainer = job.trainer(Halves(4));
    let (starts, armed) = (RefCell::new(Vec::new()), RefCell::new(None));
    // Whenever a micro-batch follows another, its sums fail at the last Var, so what was before is lost each time.
    let mut step = |fails: bool| {
        trainer.step(&job.batch(), |(x, y), micro| {
            if micro.samples.start == 0 {
                starts.borrow_mut().push(micro.samples.len());
                armed.take();
            } else if fails {
                let faults = Faults::in_phase(Phase::Accumulate, last_var);
                *armed.borrow_mut() = Some(faults.arm());
            }
            job.loss(&x, &y)
        })
    };
    let error = step(true).unwrap_err();
    assert!(error.resource_exhausted().is_some(), "{error}");
    // The same size once more, then smaller ones; a fifth beginning would be too many.
    assert_eq!(starts.take(), [4, 4, 2, 1]);
    assert_eq!(job.state(), before);
    let report = step(false).unwrap();
    assert_eq!(job.state(), uninterrupted::<Perceptron>(&[report.sizes])[0]);
}

/// A closure may accumulate for itself; what its own accumulator loses is not the trainer's loss.
#[test]
fn a_window_lost_within_the_closure_comes_back_as_it_is() {
    let job = Perceptron::new();
    let before = job.state();
    let mut trainer = job.trainer(Halves(4));
    let inner = |x: &Tensor, y: &Tensor| {
        let mut accumulator = GradientAccumulator::new(job.trained())?;
        accumulator.add(job.loss(x, y)?, 4)?;
        let _armed = Faults::in_phase(Phase::Accumulate, job.trained().len()).arm();
        accumulator.add(job.loss(x, y)?, 4)
    };
    let error = trainer.step(&job.batch(), |(x, y), micro| {
        if micro.index == 1 {
            inner(&x, &y)?;
        }
        job.loss(&x, &y)
    });
    let Err(Error::WindowLost(lost)) = error else {
        panic!("{error:?}")
    };
    assert_eq!(lost.samples, 4);
    assert_eq!((job.state(), trainer.updates()), (before, 0));
}
