//! Promise 1, a step is atomic: exhaustion at every point of a step and of an update. The same on CUDA, at every allocation: tests/cuda.

use std::cell::Cell;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::Fixed;
use candle_headroom::error::Phase;
use candle_headroom::optim::{Algorithm, Fused, ParamsAdamW, ParamsLion, ParamsSgd};
use candle_headroom::testing::{Faults, out_of_memory};
use candle_headroom::{AdamW, AdaptiveTrainer, Error, Foreign, GradientAccumulator, Loss};
use candle_nn::{Optimizer, SGD};

use crate::jobs::{Dropping, Job, Language, Perceptron, Recomputed, STEPS, points, uninterrupted};
use crate::support::{ConvNet, Halves, Mlp, adamw, foreign, snapshot};

/// One exhaustion at every point of every phase. The run continues and ends with the same bits as an uninterrupted run with
/// the same splits.
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
        assert!(retries <= 1, "point {point}"); // 0 if the update was tried again
        assert_eq!(states, uninterrupted::<J>(&splits), "point {point}");
    }
}

#[test]
fn exhaustion_at_every_point_perceptron() {
    exhaustion_everywhere::<Perceptron>();
}

#[test]
fn exhaustion_at_every_point_perceptron_with_dropout() {
    exhaustion_everywhere::<Dropping>();
    exhaustion_everywhere::<Recomputed>();
}

#[test]
fn exhaustion_at_every_point_convolution_with_batch_norm() {
    exhaustion_everywhere::<ConvNet>();
}

#[test]
fn exhaustion_at_every_point_transformer_weighted_by_tokens() {
    exhaustion_everywhere::<Language>();
}

/// A foreign optimizer that fails after half of its Vars.
struct HalfWay {
    halves: [SGD; 2],
    fails: bool,
}

impl Optimizer for HalfWay {
    type Config = bool;

    fn new(vars: Vec<Var>, fails: bool) -> candle_core::Result<Self> {
        let (first, second) = vars.split_at(vars.len() / 2);
        let halves = [
            SGD::new(first.to_vec(), 0.1)?,
            SGD::new(second.to_vec(), 0.1)?,
        ];
        Ok(Self { halves, fails })
    }

    fn step(&mut self, grads: &candle_core::backprop::GradStore) -> candle_core::Result<()> {
        self.halves[0].step(grads)?;
        if self.fails {
            return Err(out_of_memory());
        }
        self.halves[1].step(grads)
    }

    fn learning_rate(&self) -> f64 {
        self.halves[0].learning_rate()
    }

    fn set_learning_rate(&mut self, lr: f64) {
        self.halves
            .iter_mut()
            .for_each(|half| half.set_learning_rate(lr));
    }
}

#[test]
fn an_optimizer_interrupted_half_way_never_updates_twice() {
    let model = Mlp::new(DType::F32);
    let batch = Mlp::data(8, DType::F32);
    let before = snapshot(&model.vars);
    let optimizer = foreign::<HalfWay>(&model.vars, true);
    let mut trainer = AdaptiveTrainer::builder(optimizer).build().unwrap();
    let calls = Cell::new(0);
    let step = |trainer: &mut AdaptiveTrainer<Foreign<HalfWay>>| {
        trainer.step(&batch, |(x, y), _| {
            calls.set(calls.get() + 1);
            model.loss(&x, &y)
        })
    };

    let error = step(&mut trainer).unwrap_err();
    let Error::UpdateInterrupted(interrupted) = &error else {
        panic!("{error}")
    };
    assert!(
        error.resource_exhausted().is_none(),
        "an interrupted update is not an exhaustion"
    );
    let reason = interrupted.reason.as_ref().unwrap();
    let exhausted = reason.resource_exhausted().unwrap();
    assert_eq!(exhausted.phase, Some(Phase::Optimizer));
    let half = snapshot(&model.vars);
    assert_ne!(half, before);
    assert_eq!((trainer.updates(), calls.get()), (0, 1));

    // Every further step is refused and changes nothing.
    for _ in 0..2 {
        let error = step(&mut trainer).unwrap_err();
        assert!(
            matches!(&error, Error::UpdateInterrupted(i) if i.reason.is_none()),
            "{error}"
        );
    }
    assert_eq!((snapshot(&model.vars), calls.get()), (half, 1));

    // With restored parameters and an optimizer that works, the step has the result that it would have had.
    for (var, values) in model.vars.iter().zip(&before) {
        let values = Tensor::from_slice(values, var.shape(), &Device::Cpu).unwrap();
        var.set(&values.to_dtype(DType::F32).unwrap()).unwrap();
    }
    trainer.replace_optimizer(foreign(&model.vars, false));
    step(&mut trainer).unwrap();
    let other = Mlp::new(DType::F32);
    let optimizer = foreign::<HalfWay>(&other.vars, false);
    let mut trainer = AdaptiveTrainer::builder(optimizer).build().unwrap();
    trainer
        .step(&batch, |(x, y), _| other.loss(&x, &y))
        .unwrap();
    assert_eq!(snapshot(&model.vars), snapshot(&other.vars));
}

/// One exhaustion, and lasting exhaustion, at each point of the update.
fn survives_every_point<A: Algorithm>(params: A) {
    let run = |faults: Option<Faults>| {
        let model = Mlp::new(DType::F64);
        let (x, y) = Mlp::data(8, DType::F64);
        let batch = (&x, &y);
        let optimizer = Fused::builder(&model.varmap)
            .params(params.clone())
            .build()
            .unwrap();
        let mut trainer = AdaptiveTrainer::builder(optimizer)
            .policy(Fixed::new(4).unwrap())
            .build()
            .unwrap();
        let step = |trainer: &mut AdaptiveTrainer<Fused<A>>| {
            trainer.step(&batch, |(x, y), _| model.loss(&x, &y))
        };
        step(&mut trainer).unwrap();
        let before = snapshot(&model.vars);
        let armed = faults.map(Faults::arm);
        let result = step(&mut trainer);
        let fired = armed.map_or(0, |armed| armed.fired());
        if let Err(error) = &result {
            let exhausted = error.resource_exhausted().expect("an exhaustion");
            assert_eq!(exhausted.phase, Some(Phase::Optimizer));
            assert_eq!(snapshot(&model.vars), before);
            // Nothing was interrupted, so the same step works again.
            step(&mut trainer).unwrap();
        }
        assert_eq!(trainer.updates(), 2);
        (snapshot(&model.vars), fired, result.is_err())
    };
    let (expected, ..) = run(None);
    let mut points = 0;
    loop {
        let (once, fired, failed) = run(Some(Faults::in_phase(Phase::Optimizer, points)));
        assert_eq!(
            once,
            expected,
            "{} at point {points}",
            std::any::type_name::<A>()
        );
        assert!(!failed, "one failure is retried");
        let faults = Faults::in_phase(Phase::Optimizer, points).times(100);
        let (often, _, failed) = run(Some(faults));
        assert_eq!(often, expected);
        assert_eq!(failed, fired > 0);
        if fired == 0 {
            break;
        }
        points += 1;
    }
    assert!(points > 4, "only {points} points");
}

#[test]
fn an_exhausted_update_is_done_again_or_not_at_all() {
    survives_every_point(ParamsAdamW::default());
    survives_every_point(ParamsSgd {
        momentum: 0.9,
        ..Default::default()
    });
    survives_every_point(ParamsLion::default());
}

#[test]
fn an_update_by_hand_keeps_its_window_when_it_fails() {
    let model = Mlp::new(DType::F32);
    let (x, y) = Mlp::data(8, DType::F32);
    let optimizer = AdamW::builder(&model.varmap).build().unwrap();
    let mut accumulator = GradientAccumulator::builder(optimizer).build().unwrap();
    accumulator.add(model.loss(&x, &y).unwrap(), 8).unwrap();
    let armed = Faults::in_phase(Phase::Optimizer, 1).arm();
    let error = accumulator.update().unwrap_err();
    assert!(error.resource_exhausted().is_some());
    drop(armed);
    assert_eq!(accumulator.samples(), 8);
    let summary = accumulator.update().unwrap().unwrap();
    assert_eq!(summary.samples, 8);
    assert_eq!(accumulator.optimizer().progress().unwrap().steps, 1);
}

#[test]
fn a_batch_that_weighs_nothing_is_no_update() {
    let model = Mlp::new(DType::F32);
    let builder = AdaptiveTrainer::builder(adamw(&model.vars, 0.1));
    let mut trainer = builder.build().unwrap();
    let before = snapshot(&model.vars);
    let (x, y) = Mlp::data(4, DType::F32);
    let report = trainer
        .step(&x, |x, _| Ok(Loss::sum(model.loss(&x, &y)?, 0.)))
        .unwrap();
    assert_eq!(report.updated, Some(false));
    assert_eq!((trainer.updates(), snapshot(&model.vars)), (0, before));
    assert!(report.to_string().contains("no update"), "{report}");
}
