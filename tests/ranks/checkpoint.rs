//! Checkpoints that all ranks make together, and what they see where one rank fails.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use candle_headroom::Error;
use candle_headroom::checkpoint::{Checkpoint, Checkpoints, CheckpointsBuilder, Saving};
use candle_headroom::distributed::Group;
use candle_headroom::error::{CheckpointError, GroupError};
use candle_headroom::testing::{FileFaults, FileOperation, illegal_address};

use crate::launch::together;
use crate::run::{Run, folder, same};

fn builder(folder: &Path, group: &Group) -> CheckpointsBuilder {
    Checkpoints::builder(folder)
        .every(2)
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
                .resume(&mut run.trainer)
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
                let is_peer = matches!(&*error, CheckpointError::Peer { rank: 0, .. });
                assert_eq!(is_peer, group.rank() > 0, "{error}");
                assert!(error.to_string().contains("cannot write"), "{error}");
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
        let resumed = checkpoints.resume(&mut run.trainer).expect("no error");
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
        let builder = Checkpoints::builder(&folder).every(every).group(group);
        let mut checkpoints = builder.open().expect("a folder");
        let mut outcomes = Vec::new();
        for _ in 0..12 {
            outcomes.push(same(group, run.on(&mut checkpoints)));
            // Rank 0 alone waits for the disk; the outcome is no less the same.
            if group.rank() == 0 {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
        let count = |text: &str| outcomes.iter().filter(|it| it.starts_with(text)).count();
        assert!(count("Started") >= 3 && count("Saved") >= 2, "{outcomes:?}");
        checkpoints.flush().expect("the disk");
        assert!(same(group, checkpoints.last()).contains("step-0000000"));
        assert_eq!(same(group, checkpoints.best().expect("a folder")), "None");

        run.step().expect("a step");
        let armed = full_disk(&folder).arm();
        assert_eq!(same(group, run.on(&mut checkpoints)), "Started");
        let error = checkpoints.finish().expect_err("the disk is full");
        assert!(error.to_string().contains("cannot write"), "{error}");
        drop(armed);

        // By the clock, which runs differently on each rank.
        let time = std::time::Duration::from_millis(20);
        let mut builder = Checkpoints::builder(&folder).group(group);
        if group.rank() == 0 {
            builder = builder.every_time(time);
        }
        let mut checkpoints = builder.open().expect("a folder");
        checkpoints.resume(&mut run.trainer).expect("a checkpoint");
        let mut started = 0;
        for _ in 0..10 {
            std::thread::sleep(time / 3);
            let outcome = same(group, run.on(&mut checkpoints));
            started += usize::from(outcome == "Started");
        }
        assert!((1..9).contains(&started), "{started}");
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
fn a_rank_that_has_not_the_checkpoint_is_an_error_on_all() {
    together(3, |group| {
        let (_made, shared) = folder(group);
        let mut run = Run::new(group, 7);
        let mut checkpoints = builder(&shared, group).open().expect("a folder");
        run.on(&mut checkpoints);
        run.on(&mut checkpoints);
        checkpoints.finish().expect("an end");

        let elsewhere = tempfile::tempdir().expect("a folder");
        let name = "step-000000002";
        let copy = |change: &dyn Fn(&Path)| {
            let (from, to) = (shared.join(name), elsewhere.path().join(name));
            let _ = fs::remove_dir_all(&to);
            fs::create_dir(&to).expect("a folder");
            for entry in from.read_dir().expect("a checkpoint") {
                let entry = entry.expect("a file");
                fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
            }
            change(&to);
        };
        let cut_model =
            |path: &Path| fs::write(path.join("model.safetensors"), "cut").expect("a file");
        // Of the same step, by another run.
        let other_run = |path: &Path| {
            fs::remove_dir_all(path).expect("a folder");
            let alone = Group::builder()
                .variables([("A", "")])
                .open()
                .expect("a group of one");
            let mut run = Run::new(&alone, 8);
            let folder = path.parent().expect("a folder");
            let mut checkpoints = Checkpoints::builder(folder).open().expect("a folder");
            run.step().expect("a step");
            run.step().expect("a step");
            checkpoints.save_now(&run.trainer).expect("a checkpoint");
        };
        let absent = |path: &Path| fs::remove_dir_all(path).expect("a folder");
        type Change<'a> = &'a dyn Fn(&Path);
        let cases: [(Change, &str); 3] = [
            (&absent, "no such folder"),
            (&cut_model, "model.safetensors has 3 bytes"),
            (&other_run, "with other content"),
        ];
        for (change, problem) in cases {
            let mut run = Run::new(group, 7);
            let before = values(&run);
            let mut own = shared.clone();
            if group.rank() == 1 {
                copy(change);
                own = elsewhere.path().to_owned();
            }
            let mut checkpoints = builder(&own, group).open().expect("a folder");
            let error = checkpoints
                .resume(&mut run.trainer)
                .expect_err("rank 1 has it not");
            let text = error.to_string();
            assert!(
                text.contains(problem) && text.contains("a file system that they share"),
                "{text}"
            );
            if group.rank() == 1 {
                let is_own = matches!(&error, Error::Checkpoint(it) if matches!(**it, CheckpointError::NotShared { .. }));
                assert!(is_own, "{text}");
            } else {
                assert_eq!(failed_rank(&error), 1);
            }
            assert_eq!((values(&run), run.trainer.updates()), (before, 0));
            drop(checkpoints);
            // All is well with an equal copy.
            if group.rank() == 1 {
                copy(&|_| {});
            }
            let mut checkpoints = builder(&own, group).open().expect("a folder");
            let resumed = checkpoints
                .resume(&mut run.trainer)
                .expect("the same content");
            assert_eq!(resumed.expect("a checkpoint").path, own.join(name));
            run.step().expect("equal parameters");
        }
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
            .every(every)
            .open()
            .expect_err("a setting");
        assert!(
            error.to_string().contains("`every` must be above 0"),
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
        let rescued = checkpoints.rescue(&error, &run.trainer).expect("a rescue");
        let rescued = same(group, rescued.expect("a rescue"));
        assert!(rescued.contains("step-000000003.rescue"), "{rescued}");
        assert!(folder.join("step-000000003.rescue/state.json").exists());
        checkpoints.save_now(&run.trainer).expect("rank 0 is well");
        let other = Error::external(std::io::Error::other("no fault"));
        assert!(
            checkpoints
                .rescue(&other, &run.trainer)
                .expect("no error")
                .is_none()
        );
        checkpoints.finish().expect("an end");
    });
}
