//! `AdaptiveTrainer`: how it behaves under pressure, and what it refuses.

mod support;

use std::cell::{Cell, RefCell};

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::testing::{Faults, out_of_memory};
use candle_headroom::{
    AdaptiveTrainer, AdaptiveTrainerBuilder, BatchPolicy, Cause, Error, Event, Foreign, Halving,
    Loss, Phase,
};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, SGD};
use proptest::prelude::*;
use support::{Halves, Mlp, flat, snapshot, wave};

/// An optimizer of somebody else's that fails between its Vars.
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
    let optimizer = Foreign(HalfWay::new(model.vars.clone(), true).unwrap());
    let mut trainer = AdaptiveTrainer::builder(model.vars.clone(), optimizer)
        .build()
        .unwrap();
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
        "nothing to go on with"
    );
    let reason = interrupted.reason.as_ref().unwrap();
    let exhausted = reason.resource_exhausted().unwrap();
    assert_eq!(exhausted.phase, Some(Phase::Optimizer));
    let half = snapshot(&model.vars);
    assert_ne!(half, before);
    assert_eq!((trainer.updates(), calls.get()), (0, 1));

    // It does not go on, whatever is asked, and does not touch anything.
    for _ in 0..2 {
        let error = step(&mut trainer).unwrap_err();
        assert!(
            matches!(&error, Error::UpdateInterrupted(i) if i.reason.is_none()),
            "{error}"
        );
    }
    assert_eq!((snapshot(&model.vars), calls.get()), (half, 1));

    // Restored and given a sound optimizer, it does, and ends where it would have ended.
    for (var, values) in model.vars.iter().zip(&before) {
        let values = Tensor::from_slice(values, var.shape(), &Device::Cpu).unwrap();
        var.set(&values.to_dtype(DType::F32).unwrap()).unwrap();
    }
    trainer.replace_optimizer(Foreign(HalfWay::new(model.vars.clone(), false).unwrap()));
    step(&mut trainer).unwrap();
    let other = Mlp::new(DType::F32);
    let optimizer = Foreign(HalfWay::new(other.vars.clone(), false).unwrap());
    let mut trainer = AdaptiveTrainer::builder(other.vars.clone(), optimizer)
        .build()
        .unwrap();
    trainer
        .step(&batch, |(x, y), _| other.loss(&x, &y))
        .unwrap();
    assert_eq!(snapshot(&model.vars), snapshot(&other.vars));
}

#[test]
fn a_step_is_the_plain_candle_step() {
    // One micro-batch and candle's own optimizer: the same bits as a loop without this crate.
    let (ours, plain) = (Mlp::new(DType::F32), Mlp::new(DType::F32));
    let params = ParamsAdamW {
        lr: 0.02,
        ..Default::default()
    };
    let optimizer = AdamW::new(ours.vars.clone(), params.clone()).unwrap();
    let mut trainer = AdaptiveTrainer::builder(ours.vars.clone(), optimizer)
        .build()
        .unwrap();
    let mut optimizer = AdamW::new(plain.vars.clone(), params).unwrap();
    let (x, y) = Mlp::data(9, DType::F32);
    for step in 1..=5 {
        let report = trainer
            .step(&(&x, &y), |(x, y), _| ours.loss(&x, &y))
            .unwrap();
        let loss = plain.loss(&x, &y).unwrap();
        optimizer.backward_step(&loss).unwrap();
        assert_eq!(report.loss.read().unwrap(), flat(&loss)[0]);
        assert_eq!(
            (report.step, report.sizes, report.retries),
            (step, vec![9], 0)
        );
        assert_eq!(snapshot(&ours.vars), snapshot(&plain.vars));
    }
}

/// A trainer of all of a model's Vars by plain gradient descent.
fn by_sgd(model: &Mlp) -> AdaptiveTrainerBuilder<SGD> {
    let optimizer = SGD::new(model.vars.clone(), 0.01).unwrap();
    AdaptiveTrainer::builder(model.vars.clone(), optimizer)
}

/// A model with room for so many samples at once.
fn with_room(room: &Cell<usize>, x: &Tensor) -> candle_core::Result<()> {
    match x.dim(0)? > room.get() {
        true => Err(out_of_memory()),
        false => Ok(()),
    }
}

#[test]
fn it_shrinks_under_pressure_and_grows_back_when_that_goes() {
    let model = Mlp::new(DType::F32);
    let batch = Mlp::data(64, DType::F32);
    let mut trainer = by_sgd(&model).build().unwrap();
    let room = Cell::new(20);
    let mut step = || {
        trainer.step(&batch, |(x, y), _| {
            with_room(&room, &x)?;
            model.loss(&x, &y)
        })
    };
    let report = step().unwrap();
    assert_eq!(
        (report.sizes, report.retries, report.recomputed),
        (vec![16; 4], 2, 64 + 32)
    );
    assert_eq!(
        report.events[0],
        Event::Retried {
            samples: 0..64,
            to: 32,
            phase: Some(Phase::Forward),
            cause: Cause::Unknown
        }
    );
    // Under lasting pressure the larger size is tried ever more seldom.
    let retries: usize = (0..200).map(|_| step().unwrap().retries).sum();
    assert!((1..=8).contains(&retries), "{retries}");
    room.set(64);
    let mut steps = 0;
    while step().unwrap().sizes != [64] {
        steps += 1;
        assert!(steps < 600, "a ratchet");
    }
    assert_eq!(step().unwrap().retries, 0);
}

#[test]
fn a_size_that_has_worked_is_tried_once_more_before_it_shrinks() {
    let model = Mlp::new(DType::F32);
    let batch = Mlp::data(16, DType::F32);
    let mut trainer = by_sgd(&model).policy(Halves(8)).build().unwrap();
    let mut step = || {
        trainer
            .step(&batch, |(x, y), _| model.loss(&x, &y))
            .unwrap()
    };
    step();
    let armed = Faults::in_phase(Phase::Forward, 0).arm();
    let report = step();
    drop(armed);
    assert_eq!((report.sizes, report.retries), (vec![8, 8], 1));
    let armed = Faults::in_phase(Phase::Forward, 0).times(2).arm();
    let report = step();
    drop(armed);
    assert_eq!((report.sizes, report.retries), (vec![4; 4], 2));
}

#[test]
fn one_sample_that_never_fits_says_so_and_costs_little() {
    let model = Mlp::new(DType::F32);
    let batch = Mlp::data(64, DType::F32);
    let mut trainer = by_sgd(&model).build().unwrap();
    let calls = Cell::new(0);
    let room = Cell::new(0);
    let error = trainer
        .step(&batch, |(x, y), _| {
            calls.set(calls.get() + 1);
            with_room(&room, &x)?;
            model.loss(&x, &y)
        })
        .unwrap_err();
    assert_eq!(calls.get(), 7); // 64, 32, 16, 8, 4, 2, 1
    let exhausted = error.resource_exhausted().unwrap();
    assert_eq!(
        (exhausted.cause, exhausted.micro_batch),
        (Cause::NeverFits, Some(1))
    );
    assert_eq!(exhausted.samples, Some(0..1));
    assert!(std::error::Error::source(exhausted).is_some());
    assert!(
        error.to_string().contains("a single sample does not fit"),
        "{error}"
    );
    trainer
        .step(&batch, |(x, y), _| model.loss(&x, &y))
        .unwrap();
}

#[test]
fn a_retried_micro_batch_draws_the_same_random_numbers() {
    let model = Mlp::new(DType::F32);
    let batch = Mlp::data(12, DType::F32);
    let mut trainer = by_sgd(&model).policy(Halves(4)).seed(42).build().unwrap();
    let seen = RefCell::new(Vec::new());
    let mut step = || {
        let stepped = trainer.step(&batch, |(x, y), micro| {
            seen.borrow_mut()
                .push((micro.samples.start, micro.attempt, micro.seed()));
            model.loss(&x, &y)
        });
        stepped.unwrap();
        seen.take()
    };
    let first = step();
    let armed = Faults::in_phase(Phase::Backward, 1).arm();
    let second = step();
    drop(armed);
    assert_eq!(first.len(), 3);
    assert_eq!(second.len(), 4);
    let (failed, again) = (second[1], second[2]);
    assert_eq!((failed.0, failed.1), (4, 0));
    assert_eq!((again.0, again.1), (4, 1));
    assert_eq!(failed.2, again.2);
    let mut seeds: Vec<u64> = first.iter().chain(&second).map(|seen| seen.2).collect();
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), 6);
}

#[test]
fn a_batch_that_weighs_nothing_is_no_update() {
    let model = Mlp::new(DType::F32);
    let optimizer = AdamW::new_lr(model.vars.clone(), 0.1).unwrap();
    let mut trainer = AdaptiveTrainer::builder(model.vars.clone(), optimizer)
        .build()
        .unwrap();
    let before = snapshot(&model.vars);
    let (x, y) = Mlp::data(4, DType::F32);
    let report = trainer
        .step(&x, |x, _| Ok(Loss::sum(model.loss(&x, &y)?, 0.)))
        .unwrap();
    assert!(!report.updated);
    assert_eq!((trainer.updates(), snapshot(&model.vars)), (0, before));
    assert!(report.to_string().contains("no update"), "{report}");
}

#[derive(Debug)]
struct Constant(usize);

impl BatchPolicy for Constant {
    fn size(&self, _: usize) -> usize {
        self.0
    }
    fn failed(&mut self, _: &candle_headroom::Failed<'_>) {}
}

#[test]
fn bad_input_is_named_before_anything_runs() {
    let model = Mlp::new(DType::F32);
    let build = |policy: usize| {
        let optimizer = SGD::new(model.vars.clone(), 0.1).unwrap();
        AdaptiveTrainer::builder(model.vars.clone(), optimizer)
            .policy(Constant(policy))
            .build()
            .unwrap()
    };
    let before = snapshot(&model.vars);
    let (x, y) = Mlp::data(4, DType::F32);
    let never = |_, _: &_| -> candle_core::Result<Tensor> { panic!("called") };
    let empty = x.narrow(0, 0, 0).unwrap();
    for (error, words) in [
        (build(1).step(&empty, never).unwrap_err(), "empty"),
        (
            build(0).step(&x, never).unwrap_err(),
            "micro-batch of 0 with 4",
        ),
        (
            build(5).step(&x, never).unwrap_err(),
            "micro-batch of 5 with 4",
        ),
    ] {
        assert!(error.to_string().contains(words), "{error}");
    }
    let scalar = Tensor::zeros((), DType::F32, &Device::Cpu).unwrap();
    let error = build(1).step(&(&scalar, &y), |_, _| -> candle_core::Result<Tensor> {
        panic!("called")
    });
    assert!(error.unwrap_err().to_string().contains("0-dimensional"));

    // A loss of the wrong shape, and one that depends on nothing.
    let error = build(2).step(&x, |x, _| model.forward(&x)).unwrap_err();
    assert!(matches!(error, Error::Loss(_)), "{error}");
    let error = build(2).step(&x, |x, _| x.sum_all()).unwrap_err();
    assert!(matches!(error, Error::Loss(_)), "{error}");
    assert_eq!(snapshot(&model.vars), before);

    // A buffer that is no variable.
    let optimizer = SGD::new(model.vars.clone(), 0.1).unwrap();
    let builder = AdaptiveTrainer::builder(model.vars.clone(), optimizer).buffers([&x]);
    let error = builder.build().unwrap_err();
    assert!(error.to_string().contains("buffer 0"), "{error}");
}

#[test]
fn recovery_goes_to_tracing() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tracing::{Event as TracingEvent, Level, Metadata, span};

    #[derive(Default)]
    struct Counts(AtomicUsize, AtomicUsize);
    struct Counter(Arc<Counts>);
    impl tracing::Subscriber for Counter {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target().starts_with("candle_headroom")
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &TracingEvent<'_>) {
            let count = match *event.metadata().level() {
                Level::WARN => &self.0.0,
                _ => &self.0.1,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    let counts = Arc::new(Counts::default());
    // With a single subscriber, what another test's thread meets first is never told to this one either.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    tracing::subscriber::with_default(Counter(counts.clone()), || {
        let model = Mlp::new(DType::F32);
        let mut vars = model.vars.clone();
        vars.push(Var::ones(1, DType::F32, &Device::Cpu).unwrap());
        let optimizer = SGD::new(vars.clone(), 0.1).unwrap();
        let mut trainer = AdaptiveTrainer::builder(vars, optimizer).build().unwrap();
        let _armed = Faults::in_phase(Phase::Backward, 0).arm();
        let batch = Mlp::data(4, DType::F32);
        for _ in 0..3 {
            trainer
                .step(&batch, |(x, y), _| model.loss(&x, &y))
                .unwrap();
        }
    });
    // The retry, and once the Var that receives no gradient.
    assert_eq!(counts.0.load(Ordering::Relaxed), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each sample counts exactly once, however the room for micro-batches comes and goes.
    #[test]
    fn each_sample_counts_exactly_once(
        samples in 1usize..200,
        rooms in proptest::collection::vec(1usize..64, 1..40),
        start_small in any::<bool>(),
        faults in proptest::collection::vec(0usize..60, 0..3),
    ) {
        let w = Var::zeros(1, DType::F64, &Device::Cpu).unwrap();
        let x = wave(samples, 3, DType::F64).unwrap();
        let policy = if start_small { Halving::from_one() } else { Halving::from_whole_batch() };
        let optimizer = SGD::new(vec![w.clone()], 1.).unwrap();
        let mut trainer = AdaptiveTrainer::builder(vec![w.clone()], optimizer)
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
                // The update is minus the mean of all samples: one missing or doubled would show.
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
