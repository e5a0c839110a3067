//! Foreign files stay: nothing is deleted through a link, and nothing of another host or of a name that this crate does not write.
#![cfg(unix)]

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use candle_headroom::Error;
use candle_headroom::checkpoint::{Checkpoint, Saving};
use candle_headroom::error::CheckpointError;
use candle_headroom::testing::FileFaults;

use super::*;

/// A folder of somebody else's, with two files.
fn archive(temporary: &TempDir) -> PathBuf {
    let archive = temporary.path().join("archive");
    fs::create_dir(&archive).unwrap();
    for name in ["a.txt", "b.txt"] {
        fs::write(archive.join(name), "precious").unwrap();
    }
    archive
}

#[track_caller]
fn is_whole(archive: &Path) {
    assert_eq!(names(archive), ["a.txt", "b.txt"]);
}

/// The name under which this process writes step 1, from a save that failed and could not clean up.
fn partial_name(folder: &Path, run: &mut Run) -> String {
    let builder = Checkpoints::builder(folder)
        .every_updates(1)
        .in_foreground();
    let mut checkpoints = builder.open().unwrap();
    let armed = FileFaults::in_folder(folder).at(2).times(1_000).arm();
    run.until(1, &mut checkpoints, |_, saving| {
        assert!(matches!(saving, Saving::Failed(_)), "{saving:?}");
    })
    .unwrap();
    drop(armed);
    drop(checkpoints);
    let [name] = &names(folder)[..] else {
        panic!("{:?}", names(folder))
    };
    assert!(name.starts_with("step-000000001.partial-"), "{name}");
    name.clone()
}

#[test]
fn links_in_the_folder_of_a_run_lose_nothing_when_it_is_opened() {
    let (temporary, folder) = folder();
    let archive = archive(&temporary);
    let own = partial_name(&folder, &mut Run::new());
    drop(Checkpoints::builder(&folder).open().unwrap());
    assert!(names(&folder).is_empty(), "a real one of this host goes");
    for name in [
        "step-1.partial-7",
        "step-a.partial-7",
        "step-000000001.partial-7",
        &own,
    ] {
        symlink(&archive, folder.join(name)).unwrap();
        drop(Checkpoints::builder(&folder).open().unwrap());
        is_whole(&archive);
        let _ = fs::remove_file(folder.join(name));
    }
    // A real folder of such a name is not this crate's either.
    for name in ["step-1.partial-7", "step-000000001.partial-7"] {
        fs::create_dir(folder.join(name)).unwrap();
        fs::write(folder.join(name).join("notes"), "precious").unwrap();
        drop(Checkpoints::builder(&folder).open().unwrap());
        assert_eq!(names(&folder.join(name)), ["notes"], "{name}");
    }
}

#[test]
fn a_link_in_the_place_of_a_partial_checkpoint_is_replaced() {
    let (temporary, folder) = folder();
    let archive = archive(&temporary);
    let mut run = Run::new();
    let own = partial_name(&folder, &mut run);
    let mut checkpoints = Checkpoints::builder(&folder).open().unwrap();
    symlink(&archive, folder.join(own)).unwrap();
    checkpoints.save_now(&run.trainer).unwrap();
    is_whole(&archive);
    assert_eq!(names(&folder), ["step-000000001"]);
}

#[test]
fn rotation_removes_the_link_to_a_checkpoint_and_not_the_checkpoint() {
    let (temporary, folder) = folder();
    train(&folder, 1, 1);
    let archived = temporary.path().join("archived");
    fs::rename(folder.join("step-000000001"), &archived).unwrap();
    symlink(&archived, folder.join("step-000000001")).unwrap();
    let before = names(&archived);
    let builder = Checkpoints::builder(&folder).every_updates(1).keep_last(1);
    let mut checkpoints = builder.in_foreground().open().unwrap();
    let mut run = Run::new();
    // A linked checkpoint is read.
    let resumed = checkpoints
        .resume_trainer(&mut run.trainer)
        .unwrap()
        .unwrap();
    assert_eq!(resumed.step, 1);
    run.until(3, &mut checkpoints, |_, saving| {
        assert!(matches!(saving, Saving::Saved(_)), "{saving:?}");
    })
    .unwrap();
    assert_eq!(names(&folder), ["step-000000003"]);
    assert_eq!(names(&archived), before);
    assert_eq!(Checkpoint::open(&archived).unwrap().step(), 1);
}

/// A run writes to its lock, so a link in that place is refused, wherever it leads.
#[test]
fn a_link_in_the_place_of_the_lock_is_refused() {
    let (temporary, folder) = folder();
    let archive = archive(&temporary);
    let missing = temporary.path().join("missing");
    let lock = folder.join(".lock");
    fs::create_dir_all(&folder).unwrap();
    for target in [
        &archive.join("a.txt"),
        &missing,
        &archive,
        Path::new("/dev/null"),
    ] {
        symlink(target, &lock).unwrap();
        let error = match Checkpoints::builder(&folder).open().unwrap_err() {
            Error::Checkpoint(error) => *error,
            other => panic!("{other}"),
        };
        assert!(
            matches!(&error, CheckpointError::File { action: "lock", path, .. } if *path == lock),
            "{error}"
        );
        assert!(error.to_string().contains("remove it"), "{error}");
        fs::remove_file(&lock).unwrap();
    }
    is_whole(&archive);
    assert_eq!(fs::read(archive.join("a.txt")).unwrap(), b"precious");
    assert!(!missing.exists());
    drop(Checkpoints::builder(&folder).open().unwrap());
}

/// Two hosts of one folder, each with locks of its own, may have processes of the same number.
#[test]
fn a_partial_checkpoint_of_another_host_stays_while_it_is_written() {
    let (_temporary, folder) = folder();
    let own = partial_name(&folder, &mut Run::new());
    let (start, own_writer) = own.split_once(".partial-").unwrap();
    let (_, process) = own_writer.split_once('-').unwrap();
    fs::remove_dir_all(folder.join(&own)).unwrap();
    let other = folder.join(format!("{start}.partial-00c0ffee-{process}"));
    fs::create_dir(&other).unwrap();
    fs::write(other.join("model.safetensors"), "half").unwrap();
    drop(Checkpoints::builder(&folder).open().unwrap());
    assert_eq!(names(&other), ["model.safetensors"]);
    // Its writer is gone.
    let long_ago = SystemTime::now() - Duration::from_secs(2 * 3600);
    for path in [other.join("model.safetensors"), other.clone()] {
        let times = FileTimes::new().set_modified(long_ago);
        File::open(path).unwrap().set_times(times).unwrap();
    }
    drop(Checkpoints::builder(&folder).open().unwrap());
    assert!(names(&folder).is_empty());
}

/// Where locks do not reach a second host, the run that opened the folder first stops saving, by name, and deletes nothing.
#[test]
fn a_run_notices_that_another_one_has_opened_its_folder() {
    let (_temporary, folder) = folder();
    let builder = || Checkpoints::builder(&folder).every_updates(1).keep_last(1);
    let mut first = builder().in_foreground().open().unwrap();
    let mut run = Run::new();
    run.until(1, &mut first, |_, _| {}).unwrap();
    // A lock that the other one does not see.
    fs::copy(folder.join(".lock"), folder.join("moved")).unwrap();
    fs::remove_file(folder.join(".lock")).unwrap();
    fs::rename(folder.join("moved"), folder.join(".lock")).unwrap();
    run.until(2, &mut first, |_, saving| {
        assert!(matches!(saving, Saving::Saved(_)), "{saving:?}");
    })
    .unwrap();
    let second = builder().open().unwrap();
    run.until(3, &mut first, |_, saving| match saving {
        Saving::Failed(error) => {
            let is_used = |error: &CheckpointError| matches!(error, CheckpointError::InUse(at) if *at == folder);
            assert!(error.downcast_ref().is_some_and(is_used), "{error}");
        }
        other => panic!("{other:?}"),
    })
    .unwrap();
    let error = first.save_now(&run.trainer).unwrap_err().to_string();
    assert!(error.contains("in use by another"), "{error}");
    assert_eq!(names(&folder), ["step-000000002"]);
    drop((first, second));
}
