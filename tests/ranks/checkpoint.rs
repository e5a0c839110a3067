//! Checkpoints that all ranks make together, and what they see where one rank fails.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use candle_core::{DType, Device, Var};
use candle_headroom::checkpoint::{Checkpoint, Checkpoints, CheckpointsBuilder, Saving};
use candle_headroom::distributed::Group;
use candle_headroom::error::GroupError;
use candle_headroom::testing::{FileFaults, FileOperation, illegal_address};
use candle_headroom::{AdamW, AdaptiveTrainer, Error};

use crate::launch::together;
use crate::run::{Run, folder, same};

fn builder(folder: &Path, group: &Group) -> CheckpointsBuilder {
    Checkpoints::builder(folder)
        .every_updates(2)
        .in_foreground()
        .group(group)
}

fn values(run: &Run) -> String {
    format!("{:?}", run.model.values())
}

/// The rank whose error another rank has.
fn failed_rank(error: &Error) -> usize {
    match error {
        Error::Group(error) => match &**error {
            GroupError::PeerFailed { rank, .. } => *rank,
            other => panic!("{other}"),
        },
        other => panic!("{other}"),
    }
}

fn full_disk(folder: &Path) -> FileFaults {
    let faults = FileFaults::in_folder(folder)
        .only(FileOperation::Write)
        .at(0);
    faults.failing_with(ErrorKind::StorageFull)
}

#[test]
fn all_ranks_save_fail_and_resume_alike() {
    together(3, |group| {
        let (_made, folder) = folder(group);
        let mut run = Run::new(group, 7);
        let mut checkpoints = builder(&folder, group).open().expect("a folder");
        assert!(
            checkpoints
                .resume_trainer(&mut run.trainer)
                .expect("no error")
                .is_none()
        );
        checkpoints.set("from", &group.rank()).expect("a value");
        assert_eq!(same(group, run.on(&mut checkpoints)), "NotDue");
        let saved = same(group, run.on(&mut checkpoints));
        assert!(
            saved.starts_with("Saved(") && saved.contains("step-000000002"),
            "{saved}"
        );
        same(group, checkpoints.last());

        // The disk is full at step 4, and it is tried again at step 5.
        assert_eq!(same(group, run.on(&mut checkpoints)), "NotDue");
        let armed = full_disk(&folder).arm();
        match run.on(&mut checkpoints) {
            Saving::Failed(error) => {
                let text = error.to_string();
                let is_peer = text.starts_with("rank 0 could not write a checkpoint: ");
                assert_eq!(is_peer, group.rank() > 0, "{text}");
                assert!(
                    error.is_checkpoint() && text.contains("cannot write"),
                    "{text}"
                );
            }
            other => panic!("{other:?}"),
        }
        drop(armed);
        assert!(checkpoints.last_error().is_some());
        let saved = same(group, run.on(&mut checkpoints));
        assert!(saved.contains("step-000000005"), "{saved}");
        assert!(checkpoints.last_error().is_none());

        run.step().expect("a step without `after`");
        let armed = full_disk(&folder).arm();
        let error = checkpoints
            .save_now(&run.trainer)
            .expect_err("the disk is full");
        assert!(error.to_string().contains("cannot write"), "{error}");
        drop(armed);
        let path = checkpoints.save_now(&run.trainer).expect("room");
        assert!(same(group, &path).contains("step-000000006"));
        assert_eq!(same(group, run.on(&mut checkpoints)), "NotDue");
        let expected = values(&run);
        checkpoints.save_now(&run.trainer).expect("room");
        checkpoints.finish().expect("an end");

        // New trainers with other values, which take rank 0's, and then the checkpoint's.
        let mut run = Run::new(group, 100 + group.rank() as u64);
        let mut checkpoints = builder(&folder, group).open().expect("a folder");
        let report = run.step().expect("a step");
        let error = checkpoints
            .after(&report, &run.trainer)
            .expect_err("not resumed");
        assert!(same(group, error.to_string()).contains("did not resume from it"));
        let resumed = checkpoints
            .resume_trainer(&mut run.trainer)
            .expect("no error");
        assert_eq!(resumed.expect("a checkpoint").step, 7);
        assert_eq!(values(&run), expected);
        assert_eq!(checkpoints.get::<usize>("from").expect("a value"), Some(0));
        same(group, checkpoints.last());
        assert!(same(group, run.on(&mut checkpoints)).contains("step-000000008"));

        // Without a group, as on one rank.
        let alone = Checkpoint::latest(&folder)
            .expect("no error")
            .expect("a checkpoint");
        assert_eq!(alone.step(), 8);
        group.barrier().expect("all have read it");
    });
}

#[test]
fn what_is_written_in_the_background_is_told_to_all() {
    together(3, |group| {
        let (_made, folder) = folder(group);
        let mut run = Run::new(group, 7);
        // Rank 0's settings count.
        let every = if group.rank() == 0 { 2 } else { 1000 };
        let builder = Checkpoints::builder(&folder)
            .every_updates(every)
            .group(group);
        let mut checkpoints = builder.open().expect("a folder");
        // However long the disk takes, which rank 0 alone sees.
        let (mut started, mut saved) = (0, 0);
        while started < 3 || saved < 2 {
            let outcome = same(group, run.on(&mut checkpoints));
            started += usize::from(outcome == "Started");
            saved += usize::from(outcome.starts_with("Saved("));
            assert!(run.trainer.updates() < 10_000, "{started}, {saved}");
            // So that the disk has at least 10 s.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        checkpoints.flush().expect("the disk");
        assert!(same(group, checkpoints.last()).contains("step-0000"));
        assert_eq!(same(group, checkpoints.best().expect("a folder")), "None");

        let armed = full_disk(&folder).arm();
        let before = run.trainer.updates();
        while same(group, run.on(&mut checkpoints)) != "Started" {
            assert!(run.trainer.updates() < before + 10, "it is never due");
        }
        let error = checkpoints.finish().expect_err("the disk is full");
        assert!(error.to_string().contains("cannot write"), "{error}");
        drop(armed);

        // By the clock, which runs differently on each rank.
        let time = std::time::Duration::from_millis(20);
        let mut builder = Checkpoints::builder(&folder).group(group);
        if group.rank() == 0 {
            builder = builder.every_duration(time);
        }
        let mut checkpoints = builder.open().expect("a folder");
        checkpoints
            .resume_trainer(&mut run.trainer)
            .expect("a checkpoint");
        let mut started = 0;
        for _ in 0..10 {
            std::thread::sleep(time / 3);
            let outcome = same(group, run.on(&mut checkpoints));
            started += usize::from(outcome == "Started");
        }
        assert!(started > 0, "the time has passed");
        checkpoints.finish().expect("an end");
    });
}

#[test]
fn a_rank_that_does_not_save_is_named() {
    together(3, |group| {
        let (_made, folder) = folder(group);
        let mut run = Run::new(group, 7);
        let mut checkpoints = builder(&folder, group).open().expect("a folder");
        run.on(&mut checkpoints);
        let error = match group.rank() {
            1 => run.step().map(drop),
            _ => checkpoints.save_now(&run.trainer).map(drop),
        };
        let error = error.expect_err("other calls").to_string();
        assert!(
            error.contains("rank 1 `update`, rank 2 `save_now`"),
            "{error}"
        );
        checkpoints.save_now(&run.trainer).expect("all of them");
        checkpoints.finish().expect("an end");
    });
}

#[test]
fn rank_0_reads_for_all() {
    together(3, |group| {
        let (_made, shared) = folder(group);
        let mut run = Run::new(group, 7);
        let mut checkpoints = builder(&shared, group).open().expect("a folder");
        run.on(&mut checkpoints);
        run.on(&mut checkpoints);
        checkpoints.finish().expect("an end");
        let expected = values(&run);
        run.step().expect("a step");
        let after = values(&run);

        // The others see another folder, which is empty or does not exist.
        let elsewhere = tempfile::tempdir().expect("a folder");
        let own = match group.rank() {
            0 => shared,
            1 => elsewhere.path().to_owned(),
            _ => elsewhere.path().join("none"),
        };
        let mut run = Run::new(group, 100 + group.rank() as u64);
        let mut checkpoints = builder(&own, group).open().expect("a folder");
        let resumed = checkpoints
            .resume_trainer(&mut run.trainer)
            .expect("no error");
        assert_eq!(
            resumed.expect("a checkpoint").path,
            own.join("step-000000002")
        );
        assert_eq!((values(&run), run.trainer.updates()), (expected, 2));
        run.step().expect("equal state");
        assert_eq!(values(&run), after);
        checkpoints.finish().expect("an end");

        // Damage that rank 0 finds is an error on all, and nothing has changed.
        if group.rank() == 0 {
            let model = own.join("step-000000002/model.safetensors");
            fs::write(model, "cut").expect("a file");
        }
        let mut run = Run::new(group, 7);
        let before = values(&run);
        let mut checkpoints = builder(&own, group).open().expect("a folder");
        let failed = checkpoints.resume_trainer(&mut run.trainer);
        let error = failed.expect_err("damaged");
        assert!(
            error.to_string().contains("model.safetensors has 3 bytes"),
            "{error}"
        );
        assert!(group.rank() == 0 || failed_rank(&error) == 0);
        assert_eq!((values(&run), run.trainer.updates()), (before, 0));
    });
}

#[test]
fn models_that_differ_load_nothing() {
    together(2, |group| {
        let (_made, folder) = folder(group);
        // Without a group, which would compare the models itself.
        let trainer = |len: usize| {
            let w = Var::ones(len, DType::F32, &Device::Cpu).expect("a parameter");
            let optimizer = AdamW::builder(vec![("w", w.clone())]).build();
            let trainer = AdaptiveTrainer::builder(optimizer.expect("an optimizer")).build();
            (w, trainer.expect("a trainer"))
        };
        let mut checkpoints = builder(&folder, group).open().expect("a folder");
        checkpoints.save_now(&trainer(2).1).expect("a checkpoint");
        checkpoints.finish().expect("an end");

        let (w, mut other) = trainer(2 + group.rank());
        w.set(&w.zeros_like().expect("zeros")).expect("zeros");
        let mut checkpoints = builder(&folder, group).open().expect("a folder");
        let error = checkpoints
            .resume_trainer(&mut other)
            .expect_err("other models");
        let text = error.to_string();
        assert!(
            text.contains("w [3] f32 here, w [2] f32 on rank 0"),
            "{text}"
        );
        assert!(group.rank() == 1 || failed_rank(&error) == 1);
        let sum = w.sum_all().and_then(|sum| sum.to_scalar::<f32>());
        assert_eq!(sum.expect("a number"), 0.);
    });
}

#[test]
fn an_error_of_one_rank_is_one_on_all_and_they_go_on() {
    together(3, |group| {
        let (_made, folder) = folder(group);
        // In use, and a wrong setting of rank 2.
        let first = (group.rank() == 0).then(|| Checkpoints::builder(&folder).open());
        let error = builder(&folder, group).open().expect_err("in use");
        assert!(error.to_string().contains("in use by another"), "{error}");
        assert!(group.rank() == 0 || failed_rank(&error) == 0);
        drop(first);
        let every = if group.rank() == 2 { 0 } else { 2 };
        let error = builder(&folder, group)
            .every_updates(every)
            .open()
            .expect_err("a setting");
        assert!(
            error
                .to_string()
                .contains("`every_updates` must be above 0"),
            "{error}"
        );
        assert!(group.rank() == 2 || failed_rank(&error) == 2);

        // A state that rank 0 cannot read.
        let mut run = Run::new(group, 7);
        let mut checkpoints = builder(&folder, group).open().expect("a folder");
        run.on(&mut checkpoints);
        run.trainer.optimizer_mut().1 = group.rank() == 0;
        let report = run.step().expect("a step");
        let failed = checkpoints.after(&report, &run.trainer);
        let error = failed.expect_err("no state");
        assert!(error.to_string().contains("state on purpose"), "{error}");
        assert!(group.rank() == 0 || failed_rank(&error) == 0);
        let error = checkpoints.save_now(&run.trainer).expect_err("no state");
        assert!(error.to_string().contains("state on purpose"), "{error}");
        run.trainer.optimizer_mut().1 = false;
        assert!(same(group, run.on(&mut checkpoints)).contains("step-000000003"));

        // A device is lost. The others still have the whole model.
        let lost = 1;
        let own = group.rank();
        let failed = run.step_with(|loss| match own == lost {
            true => Err(illegal_address()),
            false => Ok(loss),
        });
        let error = failed.expect_err("a fault");
        assert_eq!(error.device_fault().is_some(), own == lost, "{error}");
        checkpoints.save_now(&run.trainer).expect("rank 0 is well");
        checkpoints.finish().expect("an end");
    });
}
