//! One update from several batches, and what a failed batch leaves behind.

mod panics;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::Fixed;
use candle_headroom::error::Phase;
use candle_headroom::optim::LossScale;
use candle_headroom::testing::{Faults, out_of_memory};
use candle_headroom::{
    AccumulatingTrainer, AdaptiveTrainer, Error, GradientAccumulator, Loss, Sgd,
};

fn sgd(w: &Var) -> Sgd {
    let builder = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.5);
    builder.build().unwrap()
}

fn value(w: &Var) -> f32 {
    w.flatten_all().unwrap().to_vec1::<f32>().unwrap()[0]
}

fn numbers(numbers: &[f32]) -> Tensor {
    Tensor::new(numbers, &Device::Cpu).unwrap()
}

/// Moves `w` towards the mean of what it sees.
fn distance(w: &Var, x: &Tensor) -> candle_core::Result<Tensor> {
    (x.broadcast_sub(w)?.sqr()?.mean_all()? / 2.)?.reshape(())
}

#[test]
fn batches_of_different_lengths_make_one_update_of_all_samples() {
    let w = Var::new(&[0f32], &Device::Cpu).unwrap();
    let builder = AdaptiveTrainer::builder(sgd(&w)).policy(Fixed::new(2).unwrap());
    let mut trainer = builder.build().unwrap();
    for batch in [numbers(&[1., 2., 3.]), numbers(&[6.])] {
        trainer.accumulate(&batch, |x, _| distance(&w, &x)).unwrap();
    }
    assert_eq!(
        (trainer.pending(), trainer.samples(), value(&w)),
        (2, 4, 0.)
    );
    let report = trainer.update().unwrap().expect("two batches");
    assert_eq!(report.sizes, [2, 1, 1]);
    assert_eq!((report.samples, report.updated), (4, Some(true)));
    // The mean of all four samples is 3, and the learning rate is one half.
    assert_eq!(value(&w), 1.5);
    assert!(trainer.update().unwrap().is_none(), "nothing is left");
}

#[test]
fn a_step_takes_what_was_accumulated_before_it() {
    let w = Var::new(&[0f32], &Device::Cpu).unwrap();
    let mut trainer = AdaptiveTrainer::builder(sgd(&w)).build().unwrap();
    trainer
        .accumulate(&numbers(&[2., 4.]), |x, _| distance(&w, &x))
        .unwrap();
    let report = trainer
        .step(&numbers(&[6., 8.]), |x, _| distance(&w, &x))
        .unwrap();
    assert_eq!((report.samples, value(&w)), (4, 2.5));
}

#[test]
fn a_batch_of_which_nothing_was_added_leaves_the_window_as_it_was() {
    let w = Var::new(&[0f32], &Device::Cpu).unwrap();
    let mut trainer = AdaptiveTrainer::builder(sgd(&w)).build().unwrap();
    trainer
        .accumulate(&numbers(&[2., 4.]), |x, _| distance(&w, &x))
        .unwrap();
    let failed = trainer.accumulate(&numbers(&[1., 1.]), |_, _| -> candle_core::Result<Tensor> {
        candle_core::bail!("a bug")
    });
    assert!(matches!(failed, Err(Error::Candle(_))));
    assert_eq!((trainer.pending(), trainer.samples()), (1, 2));
    assert_eq!(trainer.update().unwrap().unwrap().samples, 2);
    assert_eq!(value(&w), 1.5);
}

#[test]
fn a_batch_that_fails_half_way_takes_the_window_along_and_says_so() {
    let w = Var::new(&[0f32], &Device::Cpu).unwrap();
    let builder = AdaptiveTrainer::builder(sgd(&w)).policy(Fixed::new(1).unwrap());
    let mut trainer = builder.build().unwrap();
    trainer
        .accumulate(&numbers(&[2., 4.]), |x, _| distance(&w, &x))
        .unwrap();
    let failed = trainer.accumulate(&numbers(&[1., 1.]), |x, micro| match micro.index {
        0 => distance(&w, &x),
        _ => Err(out_of_memory()),
    });
    let Err(Error::WindowLost(lost)) = failed else {
        panic!("{failed:?}")
    };
    assert_eq!(lost.samples, 2);
    assert!(matches!(lost.reason, Error::ResourceExhausted(_)));
    assert_eq!(
        (trainer.pending(), trainer.samples(), value(&w)),
        (0, 0, 0.)
    );
    // The next window starts clean.
    let report = trainer
        .step(&numbers(&[4.]), |x, _| distance(&w, &x))
        .unwrap();
    assert_eq!((report.samples, value(&w)), (1, 2.));
}

/// The samples of earlier batches are counted, and those of the failed batch are not, wherever it failed.
#[test]
fn a_lost_window_counts_the_samples_of_earlier_batches() {
    for in_the_update in [false, true] {
        let w = Var::new(&[0f32], &Device::Cpu).unwrap();
        let builder = AdaptiveTrainer::builder(sgd(&w)).policy(Fixed::new(1).unwrap());
        let mut trainer = builder.build().unwrap();
        let earlier = numbers(&[2., 4., 6.]);
        (trainer.accumulate(&earlier, |x, _| distance(&w, &x))).unwrap();
        let faults = match in_the_update {
            false => Faults::in_phase(Phase::Forward, 1),
            true => Faults::in_phase(Phase::Optimizer, 0),
        };
        let _armed = faults.times(9).arm();
        let failed = trainer.step(&numbers(&[1., 1.]), |x, _| distance(&w, &x));
        let Err(Error::WindowLost(lost)) = failed else {
            panic!("{failed:?}")
        };
        assert_eq!(lost.samples, 3);
        assert!(matches!(lost.reason, Error::ResourceExhausted(_)));
        let left = (trainer.pending(), trainer.samples(), value(&w));
        assert_eq!(left, (0, 0, 0.));
    }
}

/// The report of an update includes the retries of a batch that failed without losing the window.
#[test]
fn what_a_failed_batch_took_is_reported_if_the_window_is_kept() {
    let w = Var::new(&[0f32], &Device::Cpu).unwrap();
    let mut trainer = AdaptiveTrainer::builder(sgd(&w)).build().unwrap();
    (trainer.accumulate(&numbers(&[2., 4.]), |x, _| distance(&w, &x))).unwrap();
    let failed = trainer.accumulate(&numbers(&[1.; 4]), |x, _| match x.dim(0)? {
        4 => Err::<Tensor, _>(out_of_memory()),
        _ => candle_core::bail!("a bug"),
    });
    assert!(matches!(failed, Err(Error::Candle(_))), "{failed:?}");
    assert_eq!((trainer.pending(), trainer.samples()), (1, 2));
    let report = trainer.update().unwrap().expect("one batch");
    assert_eq!((report.samples, report.sizes), (2, vec![2]));
    assert_eq!((report.retries, report.samples_retried), (1, 4));
    let report = trainer.step(&numbers(&[1.]), |x, _| distance(&w, &x));
    assert_eq!(
        report.unwrap().retries,
        0,
        "nothing is left for the next one"
    );
}

#[test]
fn an_update_that_failed_keeps_its_batches() {
    let w = Var::new(&[0f32], &Device::Cpu).unwrap();
    let mut trainer = AdaptiveTrainer::builder(sgd(&w)).build().unwrap();
    trainer
        .accumulate(&numbers(&[2., 4.]), |x, _| distance(&w, &x))
        .unwrap();
    let armed = Faults::in_phase(Phase::Optimizer, 0).times(10).arm();
    let error = trainer.update().unwrap_err();
    drop(armed);
    let exhausted = error.resource_exhausted().expect("an exhaustion");
    assert_eq!(exhausted.phase, Some(Phase::Optimizer));
    let held: Vec<_> = exhausted.held.iter().map(|held| &*held.what).collect();
    assert_eq!(
        held,
        ["parameters", "accumulated gradients", "optimizer state"]
    );
    assert_eq!(trainer.update().unwrap().unwrap().samples, 2);
    assert_eq!(value(&w), 1.5);
}

/// The accumulator multiplies the loss by the optimizer's loss scale, because the update divides by it.
#[test]
fn a_loss_scale_does_not_change_an_accumulators_update() {
    let updated = |scale: Option<LossScale>| {
        let w = Var::new(&[3f32], &Device::Cpu).unwrap();
        let mut builder = Sgd::builder(vec![w.clone()]).learning_rate(0.5);
        if let Some(scale) = scale {
            builder = builder.loss_scale(scale);
        }
        let accumulator = GradientAccumulator::builder(builder.build().unwrap());
        let mut accumulator = accumulator.build().unwrap();
        for _ in 0..2 {
            accumulator
                .add(w.sqr().unwrap().mean_all().unwrap(), 1)
                .unwrap();
        }
        accumulator.update().unwrap().unwrap();
        value(&w)
    };
    assert_eq!(updated(None), 0.);
    assert_eq!(updated(Some(LossScale::dynamic())), 0.);
    assert_eq!(updated(Some(LossScale::fixed(1024.))), 0.);
}

#[test]
fn a_skipped_update_is_not_reported_as_one() {
    let w = Var::new(&[3f32], &Device::Cpu).unwrap();
    let builder = Sgd::builder(vec![w.clone()]).skip_non_finite();
    let mut trainer = AdaptiveTrainer::builder(builder.build().unwrap())
        .build()
        .unwrap();
    let x = numbers(&[1.]);
    let report = trainer.step(&x, |x, _| {
        (x.broadcast_mul(&w)?.mean_all()? * f64::NAN)?.reshape(())
    });
    let report = report.unwrap();
    assert_eq!((report.updated, value(&w)), (Some(false), 3.));
    assert!(report.to_string().contains("no update"), "{report}");
    let report = trainer.step(&x, |x, _| distance(&w, &x)).unwrap();
    assert_eq!(report.updated, Some(true));
    let ignored = trainer.step(&x, |x, _| Ok(Loss::sum(distance(&w, &x)?, 0.)));
    assert_eq!(ignored.unwrap().updated, Some(false));
}

#[test]
fn weights_up_to_the_bounds_are_taken() {
    let w = Var::new(&[3f32], &Device::Cpu).unwrap();
    let mut accumulator = GradientAccumulator::builder(sgd(&w)).build().unwrap();
    for weight in [1e-30, 1., 1e30] {
        let loss = Loss::sum(distance(&w, &numbers(&[1.])).unwrap(), weight);
        accumulator.add(loss, 1).unwrap();
    }
    let loss = Loss::sum(distance(&w, &numbers(&[1.])).unwrap(), 1.1e30);
    assert!(accumulator.add(loss, 1).unwrap_err().is_loss());
}

/// On the CPU a report keeps no tensors of its micro-batches.
#[test]
fn a_report_of_many_micro_batches_is_small() {
    let w = Var::new(&[3f32], &Device::Cpu).unwrap();
    let builder = AdaptiveTrainer::builder(sgd(&w)).policy(Fixed::new(1).unwrap());
    let mut trainer = builder.build().unwrap();
    let x = Tensor::zeros(4096, DType::F32, &Device::Cpu).unwrap();
    let report = trainer.step(&x, |x, _| distance(&w, &x)).unwrap();
    assert_eq!(report.sizes.len(), 4096);
    assert!(
        format!("{:?}", report.loss).len() < 200,
        "no list of tensors"
    );
    assert!((report.loss.read().unwrap() - 4.5).abs() < 1e-6);
}

#[test]
fn a_loss_over_other_vars_than_the_optimizers_is_an_error() {
    let (w, other) = (
        Var::new(&[3f32], &Device::Cpu).unwrap(),
        Var::new(&[5f32], &Device::Cpu).unwrap(),
    );
    let mut trainer = AccumulatingTrainer::builder(sgd(&w), 1).build().unwrap();
    // Such a loss would train nothing.
    let failed = trainer.step(&numbers(&[1.]), |x, _| distance(&other, &x));
    assert!(
        matches!(&failed, Err(Error::UnreachedParameters(unreached)) if unreached.names == ["w"]),
        "{failed:?}"
    );
    assert_eq!((value(&w), value(&other)), (3., 5.));
    assert_eq!(trainer.unreached()[0].name, "w");
}
