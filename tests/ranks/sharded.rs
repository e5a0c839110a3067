//! Each rank keeps the optimizer's state for its elements alone; the parameters are those of an unsharded run, bit for bit.

use std::ops::ControlFlow::Continue;
use std::panic::{AssertUnwindSafe, catch_unwind};

use candle_core::DType;
use candle_headroom::batch::{EventKind, Observer, TrainingEvent};
use candle_headroom::checkpoint::{Checkpoint, Checkpoints, Saving};
use candle_headroom::distributed::Group;
use candle_headroom::error::Phase;
use candle_headroom::optim::{Fused, FusedBuilder, Moments, ParamsAdamW, ParamsSgd};
use candle_headroom::testing::Faults;
use candle_headroom::{AdamW, AdaptiveTrainer, Error, Sgd};

use crate::launch::{is_rank, mpirun, open, text, together};
use crate::model::{Model, data};
use crate::run::folder;

const WIDTHS: [usize; 4] = [300, 211, 77, 5];

type Build<A> = fn(&Model) -> FusedBuilder<A>;

/// Trains by both, and returns the bytes of state on this rank: sharded and not.
fn compare<A: candle_headroom::optim::Algorithm>(
    group: &Group,
    dtype: DType,
    build: Build<A>,
) -> [u64; 2] {
    let models = [Model::new(&WIDTHS, dtype, 1), Model::new(&WIDTHS, dtype, 1)];
    let optimizers = [build(&models[0]).sharded(), build(&models[1])];
    let mut trainers = optimizers.map(|optimizer| {
        let optimizer: Fused<A> = optimizer.build().expect("an optimizer");
        AdaptiveTrainer::builder(optimizer)
            .group(group)
            .build()
            .expect("a trainer")
    });
    for step in 0..12 {
        let samples = 3 + (group.rank() + step as usize) % 3;
        let batch = data(
            samples,
            (WIDTHS[0], WIDTHS[3]),
            dtype,
            step * 8 + group.rank() as u64,
        );
        let losses = [0, 1].map(|which| {
            let report = trainers[which].step(&batch, |(x, y), _| models[which].loss(&x, &y));
            report.expect("a step").loss.read().expect("a loss")
        });
        assert_eq!(losses[0], losses[1]);
        assert_eq!(
            models[0].values(),
            models[1].values(),
            "after update {step}"
        );
    }
    trainers.map(|trainer| trainer.optimizer().state_bytes())
}

fn check(group: &Group) {
    let adamw: Build<ParamsAdamW> = |model| AdamW::builder(&model.varmap).learning_rate(0.01);
    let [sharded, whole] = compare(group, DType::F32, adamw);
    let most = whole as f64 * (1. / group.size() as f64 + 0.01);
    if group.rank() == 0 {
        println!(
            "figure: distributed/sharded_state_bytes = {:.4} of unsharded on {} ranks",
            sharded as f64 / whole as f64,
            group.size()
        );
    }
    assert!(sharded as f64 <= most, "{sharded} of {whole}");
    let clipped: Build<ParamsAdamW> = |model| {
        AdamW::builder(&model.varmap)
            .learning_rate(0.01)
            .clip_norm(1e-3)
    };
    compare(group, DType::F32, clipped);
    let sgd: Build<ParamsSgd> = |model| {
        let params = ParamsSgd {
            momentum: 0.9,
            ..ParamsSgd::default()
        };
        Sgd::builder(&model.varmap)
            .params(params)
            .learning_rate(0.1)
    };
    compare(group, DType::F64, sgd);
    let masters: Build<ParamsAdamW> = |model| {
        AdamW::builder(&model.varmap)
            .learning_rate(0.01)
            .master_weights()
    };
    compare(group, DType::BF16, masters);
    compare(group, DType::F16, masters);
    let coded: Build<ParamsAdamW> = |model| {
        AdamW::builder(&model.varmap)
            .learning_rate(0.01)
            .moments(Moments::EightBit)
    };
    compare(group, DType::F32, coded);
}

#[test]
fn on_two_ranks() {
    together(2, check);
}

#[test]
fn on_three_ranks() {
    together(3, check);
}

#[test]
fn on_four_ranks() {
    together(4, check);
}

/// Each rank has updated its own elements when it fails to give them to the others: nothing may be retried, saved or trained any more.
#[test]
fn a_failure_behind_the_update_is_an_interrupted_one() {
    if is_rank() {
        let group = &open();
        let model = Model::new(&WIDTHS, DType::F16, 1);
        let adamw = AdamW::builder(&model.varmap).learning_rate(0.01);
        let optimizer = adamw.sharded().build().expect("an optimizer");
        let trainer = AdaptiveTrainer::builder(optimizer).group(group);
        let mut trainer = trainer.build().expect("a trainer");
        let batch = data(4, (WIDTHS[0], WIDTHS[3]), DType::F16, group.rank() as u64);
        let mut step = || trainer.step(&batch, |(x, y), _| model.loss(&x, &y));
        step().expect("a step");
        let before = model.values();
        // The first point is before the ranks have agreed.
        let fails = Faults::in_phase(Phase::Reduce, 1);
        let armed = (group.rank() == 1).then(|| fails.arm());
        let error = step().expect_err("one rank failed");
        assert!(error.resource_exhausted().is_none(), "{error}");
        assert_ne!(model.values(), before, "a part of them");
        match group.rank() {
            1 => {
                assert_eq!(armed.expect("faults").fired(), 1);
                let Error::UpdateInterrupted(interrupted) = &error else {
                    panic!("{error}")
                };
                let reason = interrupted.reason.as_ref().expect("a reason");
                assert!(reason.resource_exhausted().is_some(), "{reason}");
            }
            _ => assert!(matches!(error, Error::Group(_)), "{error}"),
        }
        let refused = step().expect_err("half an update");
        assert!(matches!(refused, Error::UpdateInterrupted(_)), "{refused}");
        assert!(trainer.state().is_err(), "half an update is not saved");
        println!("refused");
        return;
    }
    // The ranks leave MPI as it is, at which plain mpirun would end the slower one.
    let output = mpirun(2, &["--enable-recovery"]);
    let text = text(&output);
    assert_eq!(text.matches("refused").count(), 2, "{text}");
}

/// Panics when its own part of an update is done, before the ranks share their parts.
#[derive(Debug)]
struct Panicking;

impl Observer for Panicking {
    fn observe(&self, event: &TrainingEvent<'_>) {
        if let EventKind::PhaseEnded {
            phase: Phase::Optimizer,
            ..
        } = event.kind
        {
            panic!("on purpose, with half an update");
        }
    }
}

#[test]
fn a_panic_before_the_parts_are_shared_leaves_an_interrupted_update() {
    if is_rank() {
        let group = &open();
        let model = Model::new(&WIDTHS, DType::F32, 1);
        let adamw = AdamW::builder(&model.varmap).learning_rate(0.01);
        let optimizer = adamw.sharded().build().expect("an optimizer");
        let mut trainer = AdaptiveTrainer::builder(optimizer).group(group);
        if group.rank() == 1 {
            trainer = trainer.observer(Panicking);
        }
        let mut trainer = trainer.build().expect("a trainer");
        let before = model.values();
        let batch = data(4, (WIDTHS[0], WIDTHS[3]), DType::F32, group.rank() as u64);
        let mut step = || trainer.step(&batch, |(x, y), _| model.loss(&x, &y));
        let done = catch_unwind(AssertUnwindSafe(&mut step));
        assert_eq!(done.is_err(), group.rank() == 1);
        assert_ne!(model.values(), before, "a part of them");
        let refused = step().expect_err("half an update");
        assert!(matches!(refused, Error::UpdateInterrupted(_)), "{refused}");
        println!("refused");
        return;
    }
    let output = mpirun(2, &["--enable-recovery"]);
    let text = text(&output);
    assert_eq!(text.matches("refused").count(), 2, "{text}");
}

/// Rank 0 finds before it asks for the others' parts of the state that another run has taken the folder.
#[test]
fn all_ranks_hear_that_a_folder_is_in_use() {
    together(3, |group| {
        let (_made, folder) = folder(group);
        let model = Model::new(&WIDTHS, DType::F32, 1);
        let adamw = AdamW::builder(&model.varmap).learning_rate(0.01);
        let optimizer = adamw.sharded().build().expect("an optimizer");
        let trainer = AdaptiveTrainer::builder(optimizer).group(group);
        let mut trainer = trainer.build().expect("a trainer");
        let batch = data(4, (WIDTHS[0], WIDTHS[3]), DType::F32, group.rank() as u64);
        for in_background in [false, true] {
            let mut builder = Checkpoints::builder(&folder).every_updates(1).group(group);
            if !in_background {
                builder = builder.in_foreground();
            }
            let mut checkpoints = builder.open().expect("a folder");
            if group.rank() == 0 {
                // As a run writes on a host with other locks.
                std::fs::write(folder.join(".lock"), "another").expect("a file");
            }
            group.barrier().expect("the lock");
            let report = trainer.step(&batch, |(x, y), _| model.loss(&x, &y));
            let report = report.expect("a step");
            let saving = checkpoints.after(&report, &trainer).expect("no error");
            let Continue(Saving::Failed(error)) = saving else {
                panic!("{saving:?}")
            };
            assert!(error.to_string().contains("in use by another"), "{error}");
            let error = checkpoints.save_now(&trainer).expect_err("in use");
            assert!(error.to_string().contains("in use by another"), "{error}");
            checkpoints.finish().expect("an end");
        }
        let report = trainer.step(&batch, |(x, y), _| model.loss(&x, &y));
        assert_eq!(report.expect("the group goes on").step, 3);
    });
}

/// A checkpoint is that of an unsharded run, and any number of ranks goes on from it.
#[test]
fn a_checkpoint_holds_the_whole_state() {
    together(3, |group| {
        let folder = std::env::temp_dir().join(format!(
            "headroom-sharded-{}",
            std::os::unix::process::parent_id()
        ));
        let make = |seed| {
            let model = Model::new(&WIDTHS, DType::F32, seed);
            let adamw = AdamW::builder(&model.varmap).learning_rate(0.01);
            (model, adamw)
        };
        let train = |trainer: &mut AdaptiveTrainer<AdamW>, model: &Model, seed: u64| {
            let batch = data(
                4,
                (WIDTHS[0], WIDTHS[3]),
                DType::F32,
                seed + group.rank() as u64,
            );
            trainer
                .step(&batch, |(x, y), _| model.loss(&x, &y))
                .expect("a step");
        };
        let open = |optimizer: AdamW| {
            AdaptiveTrainer::builder(optimizer)
                .group(group)
                .build()
                .expect("a trainer")
        };
        let (model, adamw) = make(1);
        let mut first = open(adamw.sharded().build().expect("an optimizer"));
        (0..3).for_each(|step| train(&mut first, &model, step * 10));
        let checkpoints = || {
            Checkpoints::builder(&folder)
                .group(group)
                .open()
                .expect("checkpoints")
        };
        let mut saving = checkpoints();
        saving.save_now(&first).expect("a checkpoint");
        saving.finish().expect("an end");
        // Sharded and not, from other parameters.
        let mut others = Vec::new();
        for is_sharded in [true, false] {
            let (model, adamw) = make(2);
            let adamw = if is_sharded { adamw.sharded() } else { adamw };
            let mut trainer = open(adamw.build().expect("an optimizer"));
            checkpoints()
                .resume_trainer(&mut trainer)
                .expect("a checkpoint")
                .expect("it is there");
            others.push((model, trainer));
        }
        for step in 3..6 {
            train(&mut first, &model, step * 10);
            for (other, trainer) in &mut others {
                train(trainer, other, step * 10);
                assert_eq!(other.values(), model.values());
            }
        }
        // One process alone, sharded in name only.
        if group.rank() == 0 {
            let (model, adamw) = make(3);
            let trainer = AdaptiveTrainer::builder(adamw.sharded().build().expect("an optimizer"));
            let mut trainer = trainer.build().expect("a trainer");
            let latest = Checkpoint::latest(&folder)
                .expect("a checkpoint")
                .expect("it is there");
            latest.resume(&mut trainer).expect("a fitting trainer");
            assert_eq!(trainer.updates(), 3);
            assert_eq!(
                trainer.state().expect("a state").tensors.len(),
                latest.state().expect("a state").tensors.len()
            );
            let batch = data(4, (WIDTHS[0], WIDTHS[3]), DType::F32, 0);
            trainer
                .step(&batch, |(x, y), _| model.loss(&x, &y))
                .expect("a step");
        }
        group.barrier().expect("all are done");
        if group.rank() == 0 {
            std::fs::remove_dir_all(&folder).expect("the folder");
        }
    });
}
