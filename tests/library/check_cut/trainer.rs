//! When a trainer checks, and that a check leaves nothing behind.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{CutFinding, EventKind, Fixed, MicroBatch, Observer, TrainingEvent};
use candle_headroom::nn::ops::dropout;
use candle_headroom::testing::{Faults, illegal_address, out_of_memory};
use candle_headroom::{AdaptiveTrainer, Error, Foreign, Loss};
use candle_nn::SGD;

use super::{Result, cause, each, positive, trainer};
use crate::support::{Halves, Mlp, by_sgd, snapshot};

const SAMPLES: usize = 10;

fn batch() -> (Tensor, Tensor) {
    Mlp::data(SAMPLES, DType::F32)
}

fn mean(model: &Mlp, x: &Tensor, y: &Tensor) -> Result<Tensor> {
    each(model, &dropout(x, 0.5)?, y)?.mean_all()
}

/// A mean over what is kept.
fn wrong(model: &Mlp, x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let keep = positive(y)?;
    let each = (model.forward(x)? - y)?.sqr()?;
    (each * &keep)?.sum_all()?.div(&keep.sum_all()?)
}

/// Runs steps and returns the parameters after them.
fn trained(
    model: &Mlp,
    trainer: &mut AdaptiveTrainer<Foreign<SGD>>,
    steps: usize,
) -> Vec<Vec<f64>> {
    for _ in 0..steps {
        let batch = batch();
        trainer
            .step(&batch, |(x, y), _| mean(model, &x, &y))
            .unwrap();
    }
    snapshot(&model.vars)
}

fn unchecked(model: &Mlp, size: usize) -> AdaptiveTrainer<Foreign<SGD>> {
    let builder = by_sgd(model).policy(Fixed::new(size).unwrap());
    builder.unchecked_cuts().build().unwrap()
}

#[test]
fn the_first_cut_is_checked_once() {
    let model = Mlp::new(DType::F32);
    let calls = RefCell::<Vec<(bool, Range<usize>, usize)>>::default();
    let mut trainer = trainer(&model, 4);
    let mut step = |samples| {
        calls.take();
        let batch = Mlp::data(samples, DType::F32);
        let report = trainer.step(&batch, |(x, y), micro: &MicroBatch| {
            let call = (micro.is_check(), micro.samples.clone(), micro.index);
            calls.borrow_mut().push(call);
            mean(&model, &x, &y)
        });
        (report.unwrap(), calls.borrow().clone())
    };
    let (whole, calls) = step(3);
    assert_eq!((whole.cut_check(), calls), (None, vec![(false, 0..3, 0)]));
    let (cut, calls) = step(6);
    let check = cut.cut_check().unwrap();
    assert_eq!((check.samples, &check.finding), (4, &CutFinding::Agrees));
    let expected = [
        (false, 0..4, 0),
        (false, 4..6, 1),
        (true, 0..4, 0),
        (true, 0..4, 0),
        (true, 0..1, 0),
        (true, 1..4, 1),
    ];
    assert_eq!(calls, expected);
    assert!(
        format!("{cut:#}").contains("checked on 4 samples"),
        "{cut:#}"
    );
    assert!(!cut.to_string().contains("checked"), "{cut}");
    let (again, calls) = step(6);
    assert_eq!((again.cut_check(), calls.len()), (None, 2));
}

/// Equal parts would not show it, and micro-batches have even sizes.
#[test]
fn a_constant_weight_is_found_in_even_micro_batches() {
    for size in [4, 6, 8] {
        let model = Mlp::new(DType::F32);
        let mut trainer = trainer(&model, size);
        let batch = Mlp::data(2 * size + 2, DType::F32);
        let done = trainer.step(&batch, |(x, y), _| {
            Ok(Loss::weighted_mean(mean(&model, &x, &y)?, 1.))
        });
        assert!(
            matches!(done, Err(Error::DependsOnCut(_))),
            "{size}: {done:?}"
        );
    }
}

#[test]
fn a_check_changes_no_bit_of_the_training() {
    let (one, other) = (Mlp::new(DType::F32), Mlp::new(DType::F32));
    let (mut checks, mut does_not) = (trainer(&one, 4), unchecked(&other, 4));
    assert_eq!(
        trained(&one, &mut checks, 3),
        trained(&other, &mut does_not, 3)
    );
    let (state, expected) = (checks.state().unwrap(), does_not.state().unwrap());
    assert_eq!(state.metadata, expected.metadata);
}

/// Remembers what it was told.
#[derive(Debug, Default)]
struct Kinds(Mutex<Vec<String>>);

impl Observer for Kinds {
    fn observe(&self, event: &TrainingEvent<'_>) {
        let kind = match event.kind {
            EventKind::Happened(event) => event.to_string(),
            kind => format!("{kind:?}")
                .chars()
                .take_while(|c| c.is_alphabetic())
                .collect(),
        };
        self.0.lock().unwrap().push(kind);
    }
}

#[test]
fn asking_leaves_counters_gradients_buffers_and_observers_alone() {
    let run = |asks: bool| {
        let model = Mlp::new(DType::F32);
        let count = Var::zeros(1, DType::F32, &Device::Cpu).unwrap();
        let kinds = Arc::new(Kinds::default());
        let builder = by_sgd(&model).policy(Fixed::new(4).unwrap()).seed(7);
        let builder = builder
            .buffers([count.as_tensor()])
            .observer(Arc::clone(&kinds));
        let mut trainer = builder.unchecked_cuts().build().unwrap();
        let seeds = RefCell::<Vec<u64>>::default();
        let loss = |(x, y): (Tensor, Tensor), micro: &MicroBatch| {
            count.set(&(count.as_tensor() + 1.)?)?;
            if !micro.is_check() {
                seeds.borrow_mut().push(micro.seed());
            }
            mean(&model, &x, &y)
        };
        let check = |trainer: &mut AdaptiveTrainer<_>| {
            if asks {
                let check = trainer.check_cut(&batch(), loss).unwrap();
                assert_eq!(
                    (check.samples, check.finding),
                    (SAMPLES, CutFinding::Agrees)
                );
            }
        };
        check(&mut trainer);
        trainer.accumulate(&batch(), loss).unwrap();
        check(&mut trainer);
        let between = (trainer.pending(), trainer.samples(), trainer.updates());
        trainer.step(&batch(), loss).unwrap();
        check(&mut trainer);
        let kinds = kinds.0.lock().unwrap().clone();
        let metadata = trainer.state().unwrap().metadata;
        let count = count.to_vec1::<f32>().unwrap();
        let parameters = snapshot(&model.vars);
        (
            between,
            count,
            kinds,
            metadata,
            seeds.into_inner(),
            parameters,
        )
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn what_happened_is_observed() {
    let model = Mlp::new(DType::F32);
    let kinds = Arc::new(Kinds::default());
    let builder = by_sgd(&model).policy(Fixed::new(5).unwrap());
    let mut trainer = builder.observer(Arc::clone(&kinds)).build().unwrap();
    trained(&model, &mut trainer, 1);
    let kinds = kinds.0.lock().unwrap().clone();
    let forward = kinds.iter().filter(|kind| *kind == "PhaseBegan").count();
    // Four phases for each micro-batch and the update: those of the check are not observed.
    assert_eq!(forward, 2 * 4 + 1);
    let checks = kinds
        .iter()
        .filter(|kind| kind.contains("checked on 5 samples"));
    assert_eq!(checks.count(), 1, "{kinds:?}");
}

#[test]
fn it_asks_for_as_many_samples_as_fit() {
    let model = Mlp::new(DType::F32);
    let batch = Mlp::data(40, DType::F32);
    for (room, checked) in [(40, 40), (27, 14), (6, 6), (5, 3), (3, 3), (2, 2)] {
        let mut trainer = trainer(&model, 1);
        let check = trainer.check_cut(&batch, |(x, y), _| match x.dim(0)? > room {
            true => Err(out_of_memory()),
            false => mean(&model, &x, &y),
        });
        let check = check.unwrap();
        assert_eq!(
            (check.samples, check.finding),
            (checked, CutFinding::Agrees)
        );
    }
    let mut trainer = trainer(&model, 1);
    let none = trainer.check_cut(&batch, |_, _| Err::<Tensor, _>(out_of_memory()));
    assert!(none.unwrap_err().resource_exhausted().is_some());
    let single = Mlp::data(1, DType::F32);
    let single = trainer.check_cut(&single, |(x, y), _| mean(&model, &x, &y));
    assert!(matches!(single.unwrap().finding, CutFinding::Undecided(_)));
    let empty = Mlp::data(1, DType::F32).0.narrow(0, 0, 0).unwrap();
    let empty = trainer.check_cut(&empty, |_, _| -> Result<Tensor> { unreachable!() });
    let empty = empty.unwrap_err();
    assert!(empty.is_batch() && empty.to_string() == "the batch is empty: skip it");
}

/// A check that does not fit is tried again after the next cut with half the samples, down to two.
#[test]
fn a_check_that_does_not_fit_is_tried_again_with_fewer_samples() {
    for (room, found) in [
        (8, [Some(7), None, None, None]),
        (5, [None, Some(3), None, None]),
        (2, [None, None, Some(2), None]),
        (1, [None; 4]),
    ] {
        let (model, other) = (Mlp::new(DType::F32), Mlp::new(DType::F32));
        let mut trainer = trainer(&model, 8);
        let checks = Cell::new(0);
        for found in found {
            let report = trainer.step(&batch(), |(x, y), micro| {
                checks.set(checks.get() + usize::from(micro.is_check()));
                match micro.is_check() && x.dim(0)? > room {
                    true => Err(out_of_memory()),
                    false => mean(&model, &x, &y),
                }
            });
            let report = report.unwrap();
            assert_eq!(report.retries, 0);
            let agrees = report
                .cut_check()
                .filter(|check| check.finding == CutFinding::Agrees);
            assert_eq!(agrees.map(|check| check.samples), found);
        }
        let expected = trained(&other, &mut unchecked(&other, 8), 4);
        assert_eq!(snapshot(&model.vars), expected);
        assert!(checks.get() <= 6, "{checks:?}");
    }
}

/// Memory that runs out at each point of a step: the check never fails the step, and never changes its result.
#[test]
fn exhaustion_at_each_point() {
    let run = |point: usize| {
        let model = Mlp::new(DType::F32);
        let mut trainer = by_sgd(&model).policy(Halves(4)).build().unwrap();
        let faults = Faults::at(point).arm();
        let report = trainer.step(&batch(), |(x, y), _| each(&model, &x, &y)?.mean_all());
        let fired = faults.fired() > 0;
        drop(faults);
        let report = report.unwrap();
        let finding = report.cut_check().map(|check| check.finding.clone());
        (fired, report.retries, finding, snapshot(&model.vars))
    };
    let (_, _, finding, expected) = run(usize::MAX);
    assert_eq!(finding, Some(CutFinding::Agrees));
    let mut within = 0;
    for point in 1.. {
        let (fired, retries, finding, parameters) = run(point);
        if !fired {
            break;
        }
        let distance = crate::support::distance(&parameters, &expected);
        assert!(distance < 1e-6, "{point}: {distance}");
        if let Some(CutFinding::Undecided(_)) = finding {
            assert_eq!((retries, &parameters), (0, &expected), "{point}");
            within += 1;
        }
    }
    assert!(within > 8, "{within}");
}

/// Gradients that overflow at first, as with a loss scale that is not found yet, are checked later; those that never do are given up.
#[test]
fn what_cannot_be_decided_is_tried_again() {
    for (overflows, decided) in [(0, Some(0)), (3, Some(3)), (7, Some(7)), (20, None)] {
        let model = Mlp::new(DType::F32);
        let mut trainer = trainer(&model, 4);
        let mut found = None;
        for step in 0..12 {
            let factor = if step < overflows { f64::INFINITY } else { 1. };
            let report = trainer.step(&batch(), |(x, y), micro| {
                let factor = if micro.is_check() { factor } else { 1. };
                mean(&model, &x, &y)? * factor
            });
            let report = report.unwrap();
            match report.cut_check().map(|check| &check.finding) {
                Some(CutFinding::Agrees) => found = found.or(Some(step)),
                Some(CutFinding::Undecided(why)) => assert!(why.contains("finite") && step < 8),
                None => assert!(found.is_some() || step >= 8),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(found, decided);
    }
}

#[test]
fn a_fault_in_the_check_ends_the_step_and_another_error_does_not() {
    let model = Mlp::new(DType::F32);
    let before = snapshot(&model.vars);
    let failing = |error: fn() -> candle_core::Error| {
        let mut trainer = trainer(&model, 4);
        let report = trainer.step(&batch(), |(x, y), micro| match micro.is_check() {
            true => Err(error()),
            false => mean(&model, &x, &y),
        });
        (report, trainer.samples())
    };
    let (fault, samples) = failing(illegal_address);
    assert!(fault.unwrap_err().device_fault().is_some());
    assert_eq!((samples, snapshot(&model.vars)), (0, before));
    // For example a model that accepts certain sizes only.
    let (other, _) = failing(|| candle_core::Error::Msg("pairs only".to_owned()));
    let finding = other.unwrap().cut_check().unwrap().finding.clone();
    assert!(matches!(finding, CutFinding::Undecided(why) if why.contains("pairs only")));
}

#[test]
fn a_panic_in_the_check_leaves_nothing() {
    let (model, other) = (Mlp::new(DType::F32), Mlp::new(DType::F32));
    let mut trainer = trainer(&model, 4);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        trainer.step(&batch(), |(x, y), micro| {
            assert!(!micro.is_check(), "in the check");
            mean(&model, &x, &y)
        })
    }));
    assert!(panicked.is_err());
    assert_eq!((trainer.samples(), trainer.updates()), (0, 0));
    let trained_after = trained(&model, &mut trainer, 1);
    assert_eq!(trained_after, trained(&other, &mut unchecked(&other, 4), 1));
}

#[test]
fn an_accumulated_batch_that_depends_on_the_cut_is_dropped() {
    let model = Mlp::new(DType::F32);
    let mut trainer = trainer(&model, 7);
    let mut add = |samples| {
        let batch = Mlp::data(samples, DType::F32);
        trainer.accumulate(&batch, |(x, y), _| wrong(&model, &x, &y))
    };
    assert!(cause(&add(9).unwrap_err()).is_some());
    add(7).unwrap();
    let Err(Error::WindowLost(lost)) = add(9) else {
        panic!("the batches before were added to");
    };
    assert_eq!((lost.samples, cause(&lost.reason).is_some()), (7, true));
    assert_eq!(trainer.samples(), 0);
}

#[derive(Debug, thiserror::Error)]
#[error("program: {0}")]
struct Program(#[from] Error);

#[test]
fn try_step_returns_it_converted() {
    let model = Mlp::new(DType::F32);
    let mut trainer = trainer(&model, 7);
    let done = trainer.try_step(&batch(), |(x, y), _| -> Result<Tensor, Program> {
        Ok(wrong(&model, &x, &y).map_err(Error::from)?)
    });
    assert!(cause(&done.unwrap_err().0).is_some());
}
