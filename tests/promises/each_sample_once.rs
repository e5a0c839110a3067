//! Promise 2, each sample counts exactly once, whatever was retried or lost.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{EventKind, Halving, Observer, Samples, TrainingEvent};
use candle_headroom::data::{Items, Loaded, Loader};
use candle_headroom::error::{BoxedError, Phase, WindowLost};
use candle_headroom::testing::{Faults, illegal_address, out_of_memory};
use candle_headroom::{
    AccumulatingTrainer, AdaptiveTrainer, Error, Foreign, Loss, process_batches,
};
use candle_nn::{Optimizer, SGD};
use proptest::prelude::*;

use crate::jobs::{Job, Perceptron, uninterrupted};
use crate::support::{
    ConvNet, Halves, Mlp, accumulate_means, accumulator, adamw, batches, flat, foreign, read, sgd,
    snapshot, wave, with_room,
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each sample counts exactly once, however the room for micro-batches changes.
    #[test]
    fn each_sample_counts_exactly_once(
        samples in 1usize..200,
        rooms in proptest::collection::vec(1usize..64, 1..40),
        start_small in any::<bool>(),
        faults in proptest::collection::vec(0usize..60, 0..3),
    ) {
        let w = Var::zeros(1, DType::F64, &Device::Cpu).unwrap();
        let x = wave(samples, 3, DType::F64).unwrap();
        let policy = if start_small { Halving::builder().start(1).build().unwrap() } else { Halving::default() };
        let mut trainer = AdaptiveTrainer::builder(sgd(std::slice::from_ref(&w), 1.))
            .policy(policy)
            .build()
            .unwrap();
        let calls = Cell::new(0);
        let first = faults.first().copied().unwrap_or(usize::MAX);
        let armed = Faults::at(first).times(faults.len().max(1)).arm();
        let report = trainer.step(&x, |x, _| {
            let room = rooms[calls.get() % rooms.len()];
            calls.set(calls.get() + 1);
            with_room(&Cell::new(room), &x)?;
            x.broadcast_mul(&w)?.mean_all()
        });
        drop(armed);
        match report {
            Ok(report) => {
                prop_assert_eq!(report.samples, samples);
                prop_assert_eq!(report.sizes.iter().sum::<usize>(), samples);
                let mean = flat(&x).iter().sum::<f64>() / samples as f64;
                // The update is minus the mean of all samples, so a missing or doubled sample changes it.
                prop_assert!((flat(&w)[0] + mean).abs() < 1e-12);
            }
            Err(error) => {
                let exhausted = error.resource_exhausted().unwrap();
                prop_assert!(exhausted.micro_batch == Some(1) || !faults.is_empty());
                prop_assert_eq!(flat(&w)[0], 0.);
            }
        }
    }
}

#[test]
fn a_lost_window_is_begun_again_three_times_and_no_more() {
    let job = Perceptron::new();
    let before = job.state();
    let last_var = job.trained().len();
    let mut trainer = job.trainer(Halves(4));
    let (starts, armed) = (RefCell::new(Vec::new()), RefCell::new(None));
    // Except for the first micro-batch, adding the gradients fails at the last Var, so the window is lost each time.
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
    // The same size is tried once more, then smaller ones. There is no fifth start.
    assert_eq!(starts.take(), [4, 4, 2, 1]);
    assert_eq!(job.state(), before);
    let report = step(false).unwrap();
    assert_eq!(job.state(), uninterrupted::<Perceptron>(&[report.sizes])[0]);
}

/// A closure may use its own accumulator. If that one loses its window, the trainer's window is not affected.
#[test]
fn a_window_lost_within_the_closure_comes_back_as_it_is() {
    let job = Perceptron::new();
    let before = job.state();
    let mut trainer = job.trainer(Halves(4));
    let inner = |x: &Tensor, y: &Tensor| {
        let mut accumulator = accumulator(&job.trained());
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

/// A fault at every point. The failed batch was not added and those before it were, so giving it again ends with the same bits
/// as an uninterrupted run. If the error says that the window is lost, all its batches are given again.
#[test]
fn an_error_at_every_point_loses_nothing_silently() {
    let sizes = [4, 4, 4, 4];
    let run = |model: &ConvNet, armed: Option<usize>, error: fn() -> candle_core::Error| {
        let buffers = [model.norm.running_mean(), model.norm.running_var()];
        let builder = AccumulatingTrainer::builder(adamw(&model.trained(), 0.01), 2);
        let mut trainer = builder.buffers(buffers).build().unwrap();
        let (x, y) = ConvNet::data(16);
        let batches: Vec<_> = (0..4)
            .map(|i| {
                (
                    x.narrow(0, 4 * i, 4).unwrap(),
                    y.narrow(0, 4 * i, 4).unwrap(),
                )
            })
            .collect();
        let faults = Faults::at(armed.unwrap_or(usize::MAX))
            .failing_with(error)
            .arm();
        let mut next = 0;
        let mut errors = 0;
        while next < sizes.len() && errors < 4 {
            match trainer.step(&batches[next], |(x, y), _| model.loss(&x, &y)) {
                Ok(_) => next += 1,
                Err(Error::WindowLost(_)) => {
                    errors += 1;
                    next -= next % 2;
                }
                Err(_) => errors += 1,
            }
        }
        assert_eq!(trainer.updates(), 2);
        (faults.points(), errors)
    };
    let expected = ConvNet::new();
    let (points, _) = run(&expected, None, illegal_address);
    assert!(points > 30);
    for error in [illegal_address, candle_headroom::testing::out_of_memory] {
        for point in 0..points {
            let model = ConvNet::new();
            let (_, errors) = run(&model, Some(point), error);
            assert!(errors <= 1);
            assert_eq!(
                snapshot(&model.vars),
                snapshot(&expected.vars),
                "point {point}"
            );
        }
    }
}

/// A foreign optimizer that fails while `stops` is set.
struct Stops {
    inner: SGD,
    stops: bool,
}

impl Optimizer for Stops {
    type Config = bool;

    fn new(vars: Vec<Var>, stops: bool) -> candle_core::Result<Self> {
        let inner = SGD::new(vars, 0.1)?;
        Ok(Self { inner, stops })
    }

    fn step(&mut self, grads: &candle_core::backprop::GradStore) -> candle_core::Result<()> {
        match self.stops {
            true => Err(candle_headroom::testing::out_of_memory()),
            false => self.inner.step(grads),
        }
    }

    fn learning_rate(&self) -> f64 {
        self.inner.learning_rate()
    }

    fn set_learning_rate(&mut self, lr: f64) {
        self.inner.set_learning_rate(lr);
    }
}

#[test]
fn an_interrupted_update_leaves_nothing_in_the_next_window() {
    let model = Mlp::new(DType::F32);
    let batches = batches(&[4, 4]);
    let optimizer = |stops| foreign::<Stops>(&model.vars, stops);
    let mut trainer = AccumulatingTrainer::builder(optimizer(true), 2)
        .build()
        .unwrap();
    let step = |trainer: &mut AccumulatingTrainer<Foreign<Stops>>, i: usize| {
        trainer.step(&batches[i], |(x, y), _| model.loss(&x, &y))
    };
    // The same windows without an interruption.
    let undisturbed = Mlp::new(DType::F32);
    let inner = foreign::<Stops>(&undisturbed.vars, false);
    let mut expected = AccumulatingTrainer::builder(inner, 2).build().unwrap();
    // In `update`, and in the step that completes a window.
    for completes in [false, true] {
        trainer.replace_optimizer(optimizer(true));
        assert!(step(&mut trainer, 0).unwrap().is_none());
        let error = match completes {
            true => step(&mut trainer, 1).unwrap_err(),
            false => trainer.update().unwrap_err(),
        };
        assert!(matches!(error, Error::UpdateInterrupted(_)), "{error}");
        assert!(matches!(
            step(&mut trainer, 0),
            Err(Error::UpdateInterrupted(_))
        ));
        trainer.replace_optimizer(optimizer(false));
        assert!(step(&mut trainer, 0).unwrap().is_none());
        let report = step(&mut trainer, 1).unwrap().expect("two batches");
        assert_eq!((report.samples, report.sizes), (8, vec![4, 4]));
        for batch in &batches {
            let done = expected.step(batch, |(x, y), _| undisturbed.loss(&x, &y));
            done.unwrap();
        }
        // A gradient that was left over would move them farther.
        assert_eq!(snapshot(&model.vars), snapshot(&undisturbed.vars));
    }
}

proptest! {
    #[test]
    fn in_order_and_each_once(
        len in 1usize..300,
        size in 1usize..64,
        rooms in proptest::collection::vec(1usize..64, 1..50),
    ) {
        let samples: Vec<usize> = (0..len).collect();
        let calls = Cell::new(0usize);
        let chunks = process_batches(&Samples(&samples), size, |chunk| {
            let room = rooms[calls.get() % rooms.len()];
            calls.set(calls.get() + 1);
            if chunk.len() > room {
                return Err(out_of_memory());
            }
            Ok(chunk.to_vec())
        });
        prop_assert_eq!(chunks.unwrap().concat(), samples);
        prop_assert!(calls.get() <= 8 * len);
    }
}

#[test]
fn exhaustion_before_the_sums_keeps_the_window_and_within_them_says_that_it_is_lost() {
    let model = Mlp::new(DType::F32);
    let (x, y) = Mlp::data(3, DType::F32);
    // Points of the second `add`: one before the sums, then one for each Var.
    for point in 0..=model.vars.len() {
        let mut accumulator = accumulate_means(&model, &[5], DType::F32);
        let before = read(&model.vars, &accumulator);
        let armed = Faults::in_phase(Phase::Accumulate, point).arm();
        let error = accumulator.add(model.loss(&x, &y).unwrap(), 3).unwrap_err();
        assert_eq!(armed.fired(), 1);
        drop(armed);
        if point <= 1 {
            assert_eq!(
                error.resource_exhausted().unwrap().phase,
                Some(Phase::Accumulate)
            );
            assert_eq!(read(&model.vars, &accumulator), before);
            accumulator.add(model.loss(&x, &y).unwrap(), 3).unwrap();
            assert_eq!(accumulator.samples(), 8);
        } else {
            let Error::WindowLost(lost) = error else {
                panic!("{error}")
            };
            let WindowLost {
                samples, reason, ..
            } = *lost;
            assert_eq!(
                reason.resource_exhausted().unwrap().phase,
                Some(Phase::Accumulate)
            );
            assert_eq!(samples, 5);
            assert_eq!(accumulator.samples(), 0);
        }
    }
}

/// Whether it is this event.
type At = fn(&EventKind<'_>) -> bool;

/// Panics at an event, once.
#[derive(Debug, Clone)]
struct Panics {
    at: At,
    has_panicked: Arc<AtomicBool>,
}

impl Observer for Panics {
    fn observe(&self, event: &TrainingEvent<'_>) {
        if (self.at)(&event.kind) && !self.has_panicked.swap(true, Relaxed) {
            panic!("on purpose");
        }
    }
}

/// A position is consumed with the update, so a run that is saved after an observer's panic and resumed reads no sample twice and none not at
/// all, whether the update was applied or not.
#[test]
fn an_observer_that_panics_neither_repeats_nor_loses_samples() {
    let points: [(At, bool); 5] = [
        (|kind| matches!(kind, EventKind::BatchBegan { .. }), false),
        (
            |kind| {
                matches!(
                    kind,
                    EventKind::PhaseEnded {
                        phase: Phase::Backward,
                        ..
                    }
                )
            },
            false,
        ),
        (
            |kind| matches!(kind, EventKind::PhaseBegan(Phase::Optimizer)),
            false,
        ),
        (
            |kind| {
                matches!(
                    kind,
                    EventKind::PhaseEnded {
                        phase: Phase::Optimizer,
                        ..
                    }
                )
            },
            true,
        ),
        (|kind| matches!(kind, EventKind::BatchEnded { .. }), true),
    ];
    for (point, (at, is_applied)) in points.into_iter().enumerate() {
        for window in [1, 2] {
            let w = Var::zeros(1, DType::F64, &Device::Cpu).unwrap();
            let panics = Panics {
                at,
                has_panicked: Arc::new(AtomicBool::new(true)),
            };
            let build = |panics: &Panics| {
                let builder = AdaptiveTrainer::builder(sgd(std::slice::from_ref(&w), 1.));
                builder.observer(panics.clone()).build().unwrap()
            };
            let loader = || {
                let collate = |samples: Vec<f64>| -> Result<Tensor, BoxedError> {
                    Ok(Tensor::new(samples, &Device::Cpu)?)
                };
                let numbers = (0..24).map(|power| f64::from(1 << power));
                let loader = Loader::builder(Items(numbers.collect()), collate);
                loader.batch(4).build().unwrap()
            };
            let mut trainer = build(&panics);
            // Each update adds the mean of its samples, which are powers of two, so a doubled or missing one shows.
            let step = |trainer: &mut AdaptiveTrainer<_>, batch: &Loaded<Tensor>, is_last: bool| {
                let loss = |x: Tensor, _: &_| x.broadcast_mul(&w)?.mean_all()?.neg();
                match is_last {
                    true => trainer.step(batch, loss).map(drop),
                    false => trainer.accumulate(batch, loss),
                }
            };
            let mut first = loader();
            let mut batches = first.by_ref().map(|batch| batch.unwrap());
            for is_last in (1..=window).map(|number| number == window) {
                step(&mut trainer, &batches.next().unwrap(), is_last).unwrap();
            }
            panics.has_panicked.store(false, Relaxed);
            for is_last in (1..=window).map(|number| number == window) {
                let batch = batches.next().unwrap();
                let done = catch_unwind(AssertUnwindSafe(|| step(&mut trainer, &batch, is_last)));
                if done.is_err() {
                    break;
                }
            }
            assert!(panics.has_panicked.load(Relaxed), "point {point}");
            assert_eq!(
                trainer.updates(),
                1 + u64::from(is_applied && (window == 1 || point == 3))
            );
            let state = trainer.state().unwrap();
            let updated = flat(&w)[0] * f64::from(4 * window);
            let mut resumed = build(&panics);
            resumed.load_state(&state).unwrap();
            let mut rest = loader();
            assert!(rest.resume(&resumed).unwrap().is_some());
            let mut left = 0.;
            for batch in rest {
                left += flat(&batch.unwrap().batch).iter().sum::<f64>();
            }
            assert_eq!(
                updated + left,
                f64::from((1 << 24) - 1),
                "point {point}, {window} batches"
            );
        }
    }
}

/// An update of weight 0 changes nothing, and has consumed its batches.
#[test]
fn an_observer_that_panics_after_an_update_of_weight_0_loses_nothing() {
    let w = Var::ones(1, DType::F64, &Device::Cpu).unwrap();
    let panics = Panics {
        at: |kind| {
            matches!(
                kind,
                EventKind::PhaseEnded {
                    phase: Phase::Optimizer,
                    ..
                }
            )
        },
        has_panicked: Arc::default(),
    };
    let builder = AdaptiveTrainer::builder(sgd(std::slice::from_ref(&w), 1.));
    let mut trainer = builder.observer(panics.clone()).build().unwrap();
    let x = Tensor::ones(4, DType::F64, &Device::Cpu).unwrap();
    let masked = |x: Tensor, _: &_| Ok(Loss::weighted_mean(x.broadcast_mul(&w)?.mean_all()?, 0.));
    trainer.accumulate(&x, masked).unwrap();
    let done = catch_unwind(AssertUnwindSafe(|| trainer.step(&x, masked)));
    assert!(done.is_err() && panics.has_panicked.load(Relaxed));
    let report = trainer
        .step(&x, |x, _| x.broadcast_mul(&w)?.mean_all())
        .unwrap();
    assert_eq!((report.samples, trainer.updates()), (4, 1));
}
