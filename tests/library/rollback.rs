//! What a failure leaves behind: nothing in running statistics, in the number of batches or in seeds, and one report that says why.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Result as CandleResult, Tensor, Var};
use candle_headroom::batch::{Event, EventKind, Fixed, Observer, TrainingEvent};
use candle_headroom::error::{Cause, Phase};
use candle_headroom::nn::{self, BatchNorm, Linear, Module, ModuleT};
use candle_headroom::optim::Group;
use candle_headroom::testing::{Faults, out_of_memory, probe};
use candle_headroom::{
    AccumulatingTrainer, AdaptiveTrainer, DeviceMemory, Error, ResourceExhausted, Sgd,
};
use candle_nn::{VarBuilder, VarMap};

use crate::support::{flat, wave};

/// A linear layer and BatchNorm, whose statistics the optimizer has by their names.
struct Model {
    varmap: VarMap,
    linear: Linear,
    norm: BatchNorm,
}

impl Model {
    fn new() -> Self {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let linear = nn::linear(3, 4, vb.pp("linear")).unwrap();
        let norm = nn::batch_norm(4, 1e-5, vb.pp("norm")).unwrap();
        crate::support::settle(&varmap);
        let ones = Tensor::ones(4, DType::F32, &Device::Cpu).unwrap();
        let variance = Var::from_tensor(norm.running_var()).unwrap();
        variance.set(&ones).unwrap();
        Self {
            varmap,
            linear,
            norm,
        }
    }

    fn optimizer(&self) -> Sgd {
        let builder = Sgd::builder(&self.varmap).learning_rate(0.1);
        builder.build().unwrap()
    }

    fn loss(&self, x: &Tensor) -> CandleResult<Tensor> {
        let x = probe(&self.norm.forward_t(&self.linear.forward(x)?, true)?)?;
        (x * 0.5)?.sin()?.mean_all()
    }

    fn statistics(&self) -> Vec<Vec<f64>> {
        vec![
            flat(self.norm.running_mean()),
            flat(self.norm.running_var()),
        ]
    }
}

fn batch(phase: usize) -> Tensor {
    let x = wave(8 * 3, phase, DType::F32).unwrap();
    x.reshape((8, 3)).unwrap()
}

/// A failure at every point, after which the batch has the same size again: the statistics are those of a run without one.
#[test]
fn statistics_of_a_varmap_count_a_retried_micro_batch_once() {
    let run = |faults: Option<Faults>| {
        let model = Model::new();
        let builder = AdaptiveTrainer::builder(model.optimizer());
        let mut trainer = builder.policy(Fixed::whole_batch()).build().unwrap();
        let mut retries = 0;
        trainer.step(&batch(1), |x, _| model.loss(&x)).unwrap();
        let armed = faults.map(Faults::arm);
        for step in 2..4 {
            let report = trainer.step(&batch(step), |x, _| model.loss(&x)).unwrap();
            retries += report.retries;
        }
        let fired = armed.map_or(0, |armed| armed.fired());
        assert_eq!(retries, fired);
        (model.statistics(), fired)
    };
    let (expected, _) = run(None);
    let mut fired = 0;
    for phase in [Phase::Forward, Phase::Backward, Phase::Accumulate] {
        for point in 0..4 {
            let (found, times) = run(Some(Faults::in_phase(phase, point)));
            assert_eq!(found, expected, "{phase} {point}");
            fired += times;
        }
    }
    assert!(fired > 8, "{fired}");
}

/// Also of a frozen group, of an optimizer that came later, and by a trainer's evaluation.
#[test]
fn statistics_are_rolled_back_wherever_the_optimizer_has_them() {
    let model = Model::new();
    let group = |prefix: &str| {
        let data = model.varmap.data().lock().unwrap();
        let named = data.iter().filter(|(name, _)| name.starts_with(prefix));
        let named: Vec<_> = named.map(|(n, v)| (n.clone(), v.clone())).collect();
        Group::from(named)
    };
    let optimizer = Sgd::builder(group("linear")).group(group("norm").frozen());
    let w = Var::new(&[1f32], &Device::Cpu).unwrap();
    let first = Sgd::builder(vec![("w", w.clone())]).build().unwrap();
    let mut trainer = AdaptiveTrainer::builder(first).build().unwrap();
    trainer
        .step(&batch(1), |x, _| x.broadcast_mul(&w)?.mean_all())
        .unwrap();
    trainer.replace_optimizer(optimizer.build().unwrap());
    let before = model.statistics();
    let evaluated = trainer.evaluate(&batch(2), |x, _| model.loss(&x));
    evaluated.unwrap();
    assert_eq!(model.statistics(), before, "by evaluation");
    let failed = trainer.step(&batch(3), |x, _| -> CandleResult<Tensor> {
        model.loss(&x)?;
        candle_core::bail!("a bug")
    });
    assert!(matches!(failed, Err(Error::Candle(_))));
    assert_eq!(model.statistics(), before, "by a step");
    trainer.step(&batch(3), |x, _| model.loss(&x)).unwrap();
    assert_ne!(model.statistics(), before);
}

/// A window that is lost, or dropped for another optimizer, leaves no trace in statistics and named buffers.
#[test]
fn a_dropped_window_leaves_no_trace_in_buffers() {
    let model = Model::new();
    let named = Var::new(&[1f32], &Device::Cpu).unwrap();
    let builder = AdaptiveTrainer::builder(model.optimizer()).buffers([named.as_tensor()]);
    let mut trainer = builder.policy(Fixed::new(4).unwrap()).build().unwrap();
    let before = (model.statistics(), flat(&named));
    let accumulate = |trainer: &mut AdaptiveTrainer<Sgd>, fails_at| {
        trainer.accumulate(&batch(1), |x, micro| {
            named.set(&(named.as_tensor() * 2.)?)?;
            if micro.index == fails_at {
                candle_core::bail!("a bug")
            }
            model.loss(&x)
        })
    };
    accumulate(&mut trainer, 9).unwrap();
    assert_ne!((model.statistics(), flat(&named)), before);
    assert!(matches!(
        accumulate(&mut trainer, 1),
        Err(Error::WindowLost(_))
    ));
    assert_eq!((model.statistics(), flat(&named)), before, "lost");
    accumulate(&mut trainer, 9).unwrap();
    trainer.replace_optimizer(model.optimizer());
    assert_eq!((model.statistics(), flat(&named)), before, "dropped");
    // Loaded state comes after loaded buffers, which stay.
    accumulate(&mut trainer, 9).unwrap();
    let state = trainer.state().unwrap();
    named
        .set(&Tensor::new(&[7f32], &Device::Cpu).unwrap())
        .unwrap();
    trainer.load_state(&state).unwrap();
    assert_eq!(flat(&named), [7.]);
}

/// The numbers of batches and the seeds that closures and observers see.
#[derive(Debug, Default)]
struct Steps(Mutex<Vec<u64>>);

impl Observer for Steps {
    fn observe(&self, event: &TrainingEvent<'_>) {
        if let EventKind::BatchBegan { samples: 1.., .. } = event.kind {
            self.0.lock().unwrap().push(event.step);
        }
    }
}

struct Seeds {
    w: Var,
    trainer: AccumulatingTrainer<Sgd>,
    seeds: RefCell<Vec<(u64, u64)>>,
    steps: Arc<Steps>,
}

impl Seeds {
    fn new() -> Self {
        let w = Var::new(&[0f32], &Device::Cpu).unwrap();
        let optimizer = Self::optimizer(&w);
        let steps = Arc::new(Steps::default());
        let builder = AccumulatingTrainer::builder(optimizer, 3).observer(Arc::clone(&steps));
        // The check of the first cut would call the closure too.
        let builder = builder
            .policy(Fixed::new(4).unwrap())
            .seed(5)
            .unchecked_cuts();
        Self {
            w,
            trainer: builder.build().unwrap(),
            seeds: RefCell::default(),
            steps,
        }
    }

    fn optimizer(w: &Var) -> Sgd {
        Sgd::builder(vec![("w", w.clone())]).build().unwrap()
    }

    /// One batch, which fails before or after its second micro-batch was added.
    fn batch(
        &mut self,
        fails: Option<&dyn Fn() -> CandleResult<()>>,
    ) -> candle_headroom::Result<()> {
        let done = self.trainer.step(&batch(1), |x, micro| {
            let mut seeds = self.seeds.borrow_mut();
            seeds.push((micro.step, micro.seed()));
            drop(seeds);
            match fails {
                Some(fail) if micro.index == 1 => fail()?,
                _ => {}
            }
            x.broadcast_sub(&self.w)?.sqr()?.mean_all()
        });
        done.map(drop)
    }

    /// What the batches since the last call have seen.
    fn seen(&mut self) -> (Vec<(u64, u64)>, Vec<u64>) {
        let steps = std::mem::take(&mut *self.steps.0.lock().unwrap());
        (self.seeds.take(), steps)
    }
}

/// Batches that are repeated after their window was lost draw the same numbers, as in a run that was resumed.
#[test]
fn repeated_batches_draw_the_seeds_of_the_lost_ones() {
    let mut whole = Seeds::new();
    for _ in 0..3 {
        whole.batch(None).unwrap();
    }
    whole.seen();
    for _ in 0..3 {
        whole.batch(None).unwrap();
    }
    let expected = whole.seen();
    assert_eq!(expected.1, [3, 4, 5]);

    type Loss = fn(&mut Seeds);
    let lose: [(&str, Loss); 6] = [
        ("an error", |run| {
            let failed = run.batch(Some(&|| candle_core::bail!("a bug")));
            assert!(matches!(failed, Err(Error::WindowLost(_))));
        }),
        ("an exhaustion", |run| {
            let failed = run.batch(Some(&|| Err(out_of_memory())));
            assert!(matches!(failed, Err(Error::WindowLost(_))));
        }),
        ("a panic", |run| {
            let caught = catch_unwind(AssertUnwindSafe(|| run.batch(Some(&|| panic!("bug")))));
            assert!(caught.is_err());
            assert!(matches!(run.trainer.update(), Err(Error::WindowLost(_))));
        }),
        ("a failed update", |run| {
            run.batch(None).unwrap();
            let _armed = Faults::in_phase(Phase::Optimizer, 0).times(9).arm();
            assert!(matches!(run.batch(None), Err(Error::WindowLost(_))));
        }),
        ("another optimizer", |run| {
            let optimizer = Seeds::optimizer(&run.w);
            run.trainer.replace_optimizer(optimizer);
        }),
        ("loaded state", |run| {
            let state = run.trainer.state().unwrap();
            run.trainer.load_state(&state).unwrap();
        }),
    ];
    for (name, lose) in lose {
        let mut run = Seeds::new();
        for _ in 0..3 {
            run.batch(None).unwrap();
        }
        run.batch(None).unwrap();
        lose(&mut run);
        assert_eq!(run.trainer.pending(), 0, "{name}");
        run.seen();
        let saved = run.trainer.state().unwrap();
        for _ in 0..3 {
            run.batch(None).unwrap();
        }
        assert_eq!(run.seen(), expected, "{name}");
        let mut resumed = Seeds::new();
        resumed.trainer.load_state(&saved).unwrap();
        for _ in 0..3 {
            resumed.batch(None).unwrap();
        }
        assert_eq!(resumed.seen(), expected, "{name}, resumed");
    }
}

/// A batch that failed before anything was added keeps the window, and its number.
#[test]
fn a_batch_that_failed_at_once_gives_its_number_to_the_next() {
    let mut run = Seeds::new();
    run.batch(None).unwrap();
    let fails = Cell::new(true);
    let failed = run.trainer.step(&batch(1), |_, _| match fails.take() {
        true => candle_core::bail!("a bug"),
        false => Ok(Tensor::zeros((), DType::F32, &Device::Cpu)?),
    });
    assert!(matches!(failed, Err(Error::Candle(_))));
    run.batch(None).unwrap();
    assert_eq!(run.seen().1, [0, 1, 1]);
}

/// Everything that an observer hears of exhaustions and events.
#[derive(Debug, Default)]
struct Heard(Mutex<(Vec<ResourceExhausted>, Vec<Event>)>);

impl Observer for Heard {
    fn observe(&self, event: &TrainingEvent<'_>) {
        let mut heard = self.0.lock().unwrap();
        match event.kind {
            EventKind::Exhausted(exhausted) => heard.0.push(exhausted.clone()),
            EventKind::Happened(event) => heard.1.push(event.clone()),
            _ => {}
        }
    }
}

/// Adding gradients fails between two parameters, and the batches before cannot be repeated.
#[test]
fn a_failure_that_loses_earlier_batches_says_all_that_is_known() {
    let a = Var::new(&[1f32], &Device::Cpu).unwrap();
    let b = Var::new(&[1f32], &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![a.clone(), b.clone()]).build().unwrap();
    let heard = Arc::new(Heard::default());
    let memory = DeviceMemory::host().open().unwrap();
    let builder = AdaptiveTrainer::builder(optimizer).memory(&memory);
    let builder = builder.observer(Arc::clone(&heard));
    let builder = builder.policy(Fixed::new(4).unwrap()).unchecked_cuts();
    let mut trainer = builder.build().unwrap();
    let loss = |x: Tensor| x.broadcast_mul(&a)?.broadcast_mul(&b)?.mean_all();
    trainer.accumulate(&batch(1), |x, _| loss(x)).unwrap();
    let armed = Faults::in_phase(Phase::Accumulate, 2).arm();
    let failed = trainer.accumulate(&batch(2), |x, _| loss(x));
    assert_eq!(armed.fired(), 1);
    drop(armed);
    let Err(Error::WindowLost(lost)) = failed else {
        panic!("{failed:?}")
    };
    let Error::ResourceExhausted(exhausted) = &lost.reason else {
        panic!("{}", lost.reason)
    };
    assert_eq!(lost.samples, 8);
    assert_eq!(exhausted.phase, Some(Phase::Accumulate));
    assert_eq!(
        (exhausted.micro_batch, &exhausted.samples),
        (Some(4), &Some(0..4))
    );
    assert_eq!(exhausted.device.as_deref(), Some("cpu"));
    assert!(exhausted.held.len() >= 3, "{exhausted:?}");
    let half = exhausted.remedies.iter();
    assert!(
        half.into_iter()
            .any(|remedy| remedy.advice == "a micro-batch of 2")
    );
    let heard = heard.0.lock().unwrap();
    let phases: Vec<_> = heard.0.iter().map(|heard| heard.phase).collect();
    assert_eq!(phases, [Some(Phase::Accumulate)], "once");
    assert!(heard.1.is_empty(), "nothing is tried again: {:?}", heard.1);
}

/// Nobody has tried whether a sample fits without the earlier batches, which were lost.
#[test]
fn a_lost_window_does_not_say_that_a_sample_never_fits() {
    let (a, b) = [1f32, 2.]
        .map(|value| Var::new(&[value], &Device::Cpu).unwrap())
        .into();
    let optimizer = Sgd::builder(vec![a.clone(), b.clone()]).build().unwrap();
    let builder = AdaptiveTrainer::builder(optimizer).policy(Fixed::new(1).unwrap());
    let mut trainer = builder.unchecked_cuts().build().unwrap();
    let loss = |x: Tensor| x.broadcast_mul(&a)?.broadcast_mul(&b)?.mean_all();
    trainer.accumulate(&batch(1), |x, _| loss(x)).unwrap();
    let armed = Faults::in_phase(Phase::Accumulate, 2).arm();
    let failed = trainer.accumulate(&batch(2), |x, _| loss(x));
    drop(armed);
    let Err(Error::WindowLost(lost)) = failed else {
        panic!("{failed:?}")
    };
    let Error::ResourceExhausted(exhausted) = &lost.reason else {
        panic!("{}", lost.reason)
    };
    assert_eq!(exhausted.micro_batch, Some(1));
    assert_ne!(exhausted.cause, Cause::NeverFits);
}

#[test]
fn an_update_that_is_tried_again_is_reported() {
    let w = Var::new(&[1f32], &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![w.clone()]).build().unwrap();
    let heard = Arc::new(Heard::default());
    let builder = AdaptiveTrainer::builder(optimizer).observer(Arc::clone(&heard));
    let mut trainer = builder.build().unwrap();
    let _armed = Faults::in_phase(Phase::Optimizer, 0).arm();
    let report = trainer.step(&batch(1), |x, _| x.broadcast_mul(&w)?.mean_all());
    let report = report.unwrap();
    assert_eq!((report.retries, report.samples_retried), (1, 0));
    assert!(
        matches!(report.events[..], [Event::UpdateRetried { .. }]),
        "{:?}",
        report.events
    );
    let heard = heard.0.lock().unwrap();
    assert_eq!(heard.0.len(), 1);
    assert_eq!(heard.1, report.events);
    let json = serde_json::to_string(&heard.1).unwrap();
    assert!(json.contains("update_retried"), "{json}");
}

#[test]
fn parameters_are_never_compared_after_0_updates() {
    let w = Var::new(&[1f32], &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![w]).build().unwrap();
    let built = AdaptiveTrainer::builder(optimizer).compare_every(0).build();
    let error = built.unwrap_err();
    assert!(error.is_policy());
    assert_eq!(
        error.to_string(),
        "`compare_every` must be at least 1, got 0"
    );
}
