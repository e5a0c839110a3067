//! The first update fails and changes nothing, whoever drives.

use candle_headroom::error::UnreachedParameters;
use candle_headroom::optim::Commit;
use candle_headroom::{AccumulatingTrainer, AdamW, AdaptiveTrainer, Error, GradientAccumulator};

use super::{Cut, FIRST, Model, Trainer, data};
use crate::support::{flat, snapshot};

/// Everything that a trainer changes.
fn state<T: Trainer>(model: &Model, trainer: &T) -> (Vec<Vec<f64>>, Vec<Vec<f64>>, u64, u64) {
    let kept = trainer.optimizer().state().unwrap().tensors;
    let progress = trainer.optimizer().progress().unwrap();
    (
        snapshot(&model.vars),
        kept.values().map(flat).collect(),
        progress.steps,
        trainer.updates(),
    )
}

/// The first update fails and changes nothing. A run that goes on with a repaired model equals one that never failed.
fn the_first_update_fails_and_changes_nothing<T: Trainer>() {
    let sound = Model::new();
    let mut trainer = T::new(&sound);
    for _ in 0..3 {
        trainer.train(&sound, Cut::Nothing).unwrap();
    }
    let expected = state(&sound, &trainer);
    for cut in Cut::ALL {
        let model = Model::new();
        let mut trainer = T::new(&model);
        let before = state(&model, &trainer);
        for _ in 0..2 {
            let error = trainer.train(&model, cut).unwrap_err();
            let unreached: &UnreachedParameters = error.downcast_ref().expect("names");
            assert_eq!(unreached.names, cut.names(), "{cut:?}");
            assert_eq!(
                (unreached.trainable(), unreached.updates),
                (7, Some(1)),
                "{cut:?}"
            );
            assert_eq!(state(&model, &trainer), before, "{cut:?}");
        }
        for _ in 0..3 {
            trainer.train(&model, Cut::Nothing).unwrap();
        }
        assert_eq!(state(&model, &trainer), expected, "{cut:?}");
    }
}

#[test]
fn the_first_update_of_an_adaptive_trainer() {
    the_first_update_fails_and_changes_nothing::<AdaptiveTrainer<AdamW>>();
}

#[test]
fn the_first_update_of_an_accumulating_trainer() {
    the_first_update_fails_and_changes_nothing::<AccumulatingTrainer<AdamW>>();
}

/// Without an earlier batch the error is bare.
#[test]
fn the_error_of_a_step_is_typed() {
    let model = Model::new();
    let mut trainer = AdaptiveTrainer::new(&model);
    let error = trainer.train(&model, Cut::Detach).unwrap_err();
    assert!(matches!(&error, Error::UnreachedParameters(_)), "{error}");
    assert!(error.resource_exhausted().is_none());
}

/// An accumulator keeps its window: the update succeeds once another micro-batch has reached what is missing.
#[test]
fn the_first_update_of_an_accumulator_keeps_the_window() {
    let run = |fails: bool| {
        let model = Model::new();
        let mut builder = GradientAccumulator::builder(model.adamw());
        if !fails {
            builder = builder.allow_unreached(["*"]);
        }
        let mut accumulator = builder.build().unwrap();
        accumulator
            .add(model.loss(&data(6), Cut::Softmax).unwrap(), 6)
            .unwrap();
        let before = snapshot(&model.vars);
        for _ in 0..if fails { 2 } else { 0 } {
            let error = accumulator.update().unwrap_err();
            let Error::UnreachedParameters(unreached) = &error else {
                panic!("{error}")
            };
            assert_eq!(unreached.names, FIRST);
            assert_eq!(
                (snapshot(&model.vars), accumulator.samples()),
                (before.clone(), 6)
            );
            assert_eq!(accumulator.optimizer().progress().unwrap().steps, 0);
        }
        accumulator
            .add(model.loss(&data(3), Cut::Nothing).unwrap(), 3)
            .unwrap();
        let report = accumulator.update().unwrap().expect("two micro-batches");
        assert_eq!((report.step, report.samples), (1, 9));
        snapshot(&model.vars)
    };
    assert_eq!(run(true), run(false));
}

/// Batches that were accumulated one by one are kept too.
#[test]
fn an_update_of_accumulated_batches_keeps_them() {
    let model = Model::new();
    let mut trainer = AdaptiveTrainer::new(&model);
    trainer
        .accumulate(&data(6), |x, _| model.loss(&x, Cut::RmsNorm))
        .unwrap();
    let before = snapshot(&model.vars);
    let error = trainer.update().unwrap_err();
    assert!(matches!(&error, Error::UnreachedParameters(_)), "{error}");
    assert_eq!((trainer.samples(), trainer.updates()), (6, 0));
    assert_eq!(snapshot(&model.vars), before);
    trainer
        .accumulate(&data(3), |x, _| model.loss(&x, Cut::Nothing))
        .unwrap();
    assert_eq!(trainer.update().unwrap().unwrap().samples, 9);
}
