//! Promise 5, it ends: retries are bounded, and training goes on after the error.

use std::cell::{Cell, RefCell};

use candle_core::{DType, Device, Tensor};
use candle_headroom::batch::Event;
use candle_headroom::error::{Cause, Phase};
use candle_headroom::process_batches;
use candle_headroom::testing::{Faults, out_of_memory};

use crate::jobs::{Job, STEPS, points, uninterrupted, whole_splits};
use crate::support::{ConvNet, Halves, Mlp, by_sgd, snapshot, with_room};

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

/// From one point on, everything is exhausted; for every point.
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
        // 4 samples twice, then 2 and 1, after at most one start whose gradients were lost, or an update that was tried twice.
        assert!(armed.fired() <= 2 + 4, "point {point}: {}", armed.fired());
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
        // Training then continues from the same state.
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

/// In each of the first starts, adding the gradients of the second micro-batch fails in the middle, which loses what was added before. The
/// sizes would allow a fifth start, with one sample.
#[test]
fn a_batch_starts_again_three_times_and_no_more() {
    for fails in 0..6 {
        let model = Mlp::new(DType::F32);
        let batch = Mlp::data(16, DType::F32);
        let builder = by_sgd(&model).policy(Halves(8)).unchecked_cuts();
        let mut trainer = builder.build().unwrap();
        let before = snapshot(&model.vars);
        let (mut starts, mut armed) = (Vec::new(), None);
        let stepped = trainer.step(&batch, |(x, y), micro| {
            drop(armed.take());
            if micro.samples.start == 0 {
                starts.push(micro.samples.len());
            } else if starts.len() <= fails {
                let faults = Faults::in_phase(Phase::Accumulate, model.vars.len());
                armed = Some(faults.arm());
            }
            model.loss(&x, &y)
        });
        drop(armed);
        match stepped {
            Ok(report) => {
                let restarts = report.events.iter();
                let restarts = restarts.filter(|event| matches!(event, Event::Restarted { .. }));
                assert_eq!(restarts.count(), fails);
                assert_eq!(starts, [8, 8, 4, 2][..=fails]);
            }
            Err(error) => {
                assert!(error.resource_exhausted().is_some(), "{error}");
                assert_eq!(starts, [8, 8, 4, 2]);
                assert!(fails > 3);
                assert_eq!(snapshot(&model.vars), before);
            }
        }
    }
}

#[test]
fn one_sample_that_does_not_fit_ends_it_and_says_how_far_it_came() {
    let x = Tensor::arange(0f32, 20., &Device::Cpu).unwrap();
    let finished = RefCell::new(Vec::new());
    let error = process_batches(&x, 8, |chunk| {
        let values = chunk.to_vec1::<f32>()?;
        if values.contains(&13.) {
            return Err(out_of_memory());
        }
        finished.borrow_mut().extend(values);
        Ok(())
    })
    .unwrap_err();
    let exhausted = error.resource_exhausted().unwrap();
    assert_eq!(exhausted.samples, Some(13..14));
    assert_eq!(exhausted.cause, Cause::NeverFits);
    assert_eq!(exhausted.phase, Some(Phase::Forward));
    let expected: Vec<f32> = (0..13).map(|i| i as f32).collect();
    assert_eq!(finished.take(), expected);
}
