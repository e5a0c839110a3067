//! A file system that fails: training goes on, what was saved stays, and saving is tried again.

use std::io::ErrorKind;

use candle_headroom::checkpoint::Saving;
use candle_headroom::error::CheckpointError;
use candle_headroom::testing::{FileFaults, FileOperation};

use super::run::{differing, memory_folder, uninterrupted};
use super::*;

const STEPS: u64 = 5;

/// The number of file operations of a run that saves each step.
fn operations(in_background: bool) -> usize {
    let temporary = memory_folder();
    let folder = temporary.path().join("run");
    let armed = FileFaults::in_folder(&folder).arm();
    run_over(&folder, in_background);
    armed.operations()
}

/// Trains and saves each step, over all failures. Returns the failures that were reported.
fn run_over(folder: &Path, in_background: bool) -> Vec<String> {
    let builder = Checkpoints::builder(folder).every_updates(1).keep_last(2);
    let builder = match in_background {
        true => builder,
        false => builder.in_foreground(),
    };
    let mut checkpoints = builder.open().unwrap();
    let mut failures = Vec::new();
    let mut run = Run::new();
    while run.trainer.updates() < STEPS {
        let before = names(folder)
            .iter()
            .filter(|name| !name.contains("partial"))
            .count();
        let report = run.step().unwrap();
        let saving = checkpoints.after(&report, &run.trainer).unwrap();
        if let std::ops::ControlFlow::Continue(Saving::Failed(error)) = saving {
            assert!(checkpoints.last_error().is_some());
            failures.push(error.to_string());
        }
        // Faster than the disk, as hardly a training is.
        if let Err(error) = checkpoints.flush() {
            failures.push(error.to_string());
        }
        if before > 0 {
            assert!(latest(folder).is_some(), "a good one stays");
        }
    }
    // The step that failed last may wait for its turn, so the last one is saved on request.
    checkpoints.save_now(&run.trainer).unwrap();
    assert!(checkpoints.last_error().is_none());
    failures
}

/// Each operation of each kind in turn, with the background and without.
#[test]
fn every_operation_may_fail_once() {
    let whole = uninterrupted(STEPS as usize);
    for in_background in [false, true] {
        let (mut reported, count) = (0, operations(in_background));
        // The last one is that of the save on request, which finds everything saved.
        for point in 0..count - 1 {
            let temporary = memory_folder();
            let folder = temporary.path().join("run");
            let faults = FileFaults::in_folder(&folder).at(point);
            let armed = faults.failing_with(ErrorKind::StorageFull).arm();
            reported += run_over(&folder, in_background).len();
            assert_eq!(armed.fired(), 1, "point {point}");
            drop(armed);
            let mut checkpoints = Checkpoints::builder(&folder).open().unwrap();
            let mut run = Run::new();
            checkpoints
                .resume_trainer(&mut run.trainer)
                .unwrap()
                .unwrap();
            assert_eq!(differing(&run.bits(), &whole[STEPS as usize]), 0);
            assert!(names(&folder).iter().all(|name| !name.contains("partial")));
        }
        println!("background {in_background}: {count} operations, {reported} failures reported");
        assert!(reported > count / 4, "removals are only logged");
    }
}

/// A disk that stays full: each failure is reported, and tried again more and more rarely.
#[test]
fn a_full_disk_does_not_end_the_training() {
    for operation in [
        FileOperation::Create,
        FileOperation::Write,
        FileOperation::Sync,
        FileOperation::Rename,
    ] {
        let (_temporary, folder) = folder();
        let builder = Checkpoints::builder(&folder)
            .every_updates(1)
            .in_foreground();
        let mut checkpoints = builder.open().unwrap();
        let mut run = Run::new();
        run.until(2, &mut checkpoints, |_, _| {}).unwrap();
        let faults = FileFaults::in_folder(&folder).only(operation).at(0);
        let faults = faults
            .times(usize::MAX)
            .failing_with(ErrorKind::StorageFull);
        let armed = faults.arm();
        let mut tried = Vec::new();
        run.until(20, &mut checkpoints, |run, saving| match saving {
            Saving::Failed(error) => {
                let cause = error.downcast_ref();
                assert!(
                    matches!(cause, Some(CheckpointError::File { .. })),
                    "{error}"
                );
                tried.push(run.trainer.updates());
            }
            Saving::NotDue => {}
            other => panic!("{other:?}"),
        })
        .unwrap();
        assert_eq!(tried, [3, 4, 6, 10, 18], "{operation:?}");
        if operation != FileOperation::Sync {
            assert_eq!(latest(&folder), Some(2), "{operation:?}");
        }
        let error = checkpoints.save_now(&run.trainer).unwrap_err();
        assert!(error.to_string().contains("cannot "), "{error}");
        drop(armed);
        checkpoints.save_now(&run.trainer).unwrap();
        assert_eq!(latest(&folder), Some(20));
        assert!(names(&folder).iter().all(|name| !name.contains("partial")));
    }
}

/// What failed in the background does not keep the next one from being saved.
#[test]
fn a_save_on_request_does_not_depend_on_the_one_before() {
    let (_temporary, folder) = folder();
    let mut checkpoints = Checkpoints::builder(&folder)
        .every_updates(1)
        .open()
        .unwrap();
    let faults = FileFaults::in_folder(&folder)
        .only(FileOperation::Write)
        .at(0);
    let armed = faults.failing_with(ErrorKind::StorageFull).arm();
    let mut run = Run::new();
    run.until(1, &mut checkpoints, |_, _| {}).unwrap();
    checkpoints.save_now(&run.trainer).unwrap();
    assert_eq!(armed.fired(), 1);
    assert_eq!(latest(&folder), Some(1));
    assert!(checkpoints.last_error().is_none());
    checkpoints.finish().unwrap();

    let (_temporary, folder) = super::folder();
    let mut checkpoints = Checkpoints::builder(&folder)
        .every_updates(1)
        .open()
        .unwrap();
    let faults = FileFaults::in_folder(&folder)
        .only(FileOperation::Rename)
        .at(0);
    let _armed = faults.arm();
    run.until(2, &mut checkpoints, |_, _| {}).unwrap();
    let error = checkpoints.finish().unwrap_err();
    assert!(error.to_string().contains("cannot rename"), "{error}");
}

/// Commands as root, in a file system of 64 KiB: full, read-only, and gone.
#[cfg(target_os = "linux")]
#[test]
fn a_small_a_read_only_and_a_lost_file_system() {
    use std::process::Command;

    let temporary = tempfile::tempdir().unwrap();
    let mount = temporary.path().join("mount");
    std::fs::create_dir(&mount).unwrap();
    let command = |arguments: &[&str], path: &Path| {
        let [program, arguments @ ..] = arguments else {
            return false;
        };
        let output = Command::new(program).args(arguments).arg(path).output();
        output.is_ok_and(|output| output.status.success())
    };
    if !command(&["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs"], &mount) {
        eprintln!("skipped: this process may not mount a file system");
        return;
    }
    struct Unmount(PathBuf);
    impl Drop for Unmount {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).output();
        }
    }
    let mounted = Unmount(mount.clone());
    let folder = mount.join("run");
    let builder = Checkpoints::builder(&folder)
        .every_updates(1)
        .keep_last(1)
        .in_foreground();
    let mut checkpoints = builder.open().unwrap();
    // Parameters and two moments of 10 KiB each: one checkpoint fits, two do not.
    let mut run = Run::sized(64, 40);
    checkpoints.save_now(&run.trainer).unwrap();
    let mut failures = Vec::new();
    let mut until = |run: &mut Run, checkpoints: &mut Checkpoints, steps| {
        failures.clear();
        run.until(steps, checkpoints, |_, saving| {
            if let Saving::Failed(error) = saving {
                failures.push(error.to_string());
            }
        })
        .unwrap();
        failures.join("\n")
    };
    let text = until(&mut run, &mut checkpoints, 3);
    assert!(text.contains("No space left on device"), "{text}");
    assert_eq!(latest(&folder), Some(0), "the one before stays");
    assert_eq!(latest(&folder), Some(0), "the one before stays");
    drop(checkpoints);

    let small = || {
        Checkpoints::builder(&folder)
            .every_updates(1)
            .keep_last(1)
            .in_foreground()
            .open()
    };
    std::fs::remove_dir_all(&folder).unwrap();
    let (mut run, mut checkpoints) = (Run::new(), small().unwrap());
    assert_eq!(until(&mut run, &mut checkpoints, 2), "");
    let path = folder.to_str().unwrap();
    assert!(command(&["mount", "-o", "bind,ro", path], &folder));
    let text = until(&mut run, &mut checkpoints, 4);
    assert!(text.contains("Read-only file system"), "{text}");
    assert_eq!(latest(&folder), Some(2));
    assert!(command(&["umount"], &folder));
    assert_eq!(until(&mut run, &mut checkpoints, 9), "");
    assert!(latest(&folder) >= Some(6));
    drop(mounted);
    let text = until(&mut run, &mut checkpoints, 10);
    assert!(text.contains("No such file or directory"), "{text}");
    assert!(!folder.exists(), "nothing is written where the mount was");
}

/// What the caller gave for the checkpoint that failed is saved with the next one, and the next one is tried soon.
#[test]
fn a_failed_save_loses_neither_its_metrics_nor_its_turn() {
    for on_request in [false, true] {
        let (_temporary, folder) = folder();
        let builder = Checkpoints::builder(&folder)
            .every_updates(10)
            .in_foreground();
        let mut checkpoints = builder.open().unwrap();
        let faults = FileFaults::in_folder(&folder)
            .only(FileOperation::Write)
            .at(0);
        let armed = faults.failing_with(ErrorKind::StorageFull).arm();
        let mut run = Run::new();
        run.until(9, &mut checkpoints, |_, _| {}).unwrap();
        checkpoints.metric("accuracy", 0.7);
        if on_request {
            let error = checkpoints.save_now(&run.trainer).unwrap_err();
            let cause = error.downcast_ref();
            assert!(
                matches!(cause, Some(CheckpointError::File { .. })),
                "{error}"
            );
            let error = checkpoints.last_error().unwrap().to_string();
            assert!(error.contains("cannot write"), "{error}");
        }
        run.until(11, &mut checkpoints, |_, _| {}).unwrap();
        assert_eq!(armed.fired(), 1);
        let saved = if on_request { 10 } else { 11 };
        assert_eq!(names(&folder), [format!("step-{saved:09}")]);
        assert!(checkpoints.last_error().is_none());
        let path = checkpoints.last().unwrap();
        let saved = candle_headroom::checkpoint::Checkpoint::open(path).unwrap();
        assert_eq!(saved.metrics()["accuracy"], 0.7);
        run.until(21, &mut checkpoints, |_, _| {}).unwrap();
        let last = candle_headroom::checkpoint::Checkpoint::latest(&folder).unwrap();
        assert!(!last.unwrap().metrics().contains_key("accuracy"), "once");
    }
}
