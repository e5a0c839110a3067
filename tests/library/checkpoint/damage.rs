use std::fs;

use candle_headroom::Error;
use candle_headroom::checkpoint::Checkpoint;
use candle_headroom::error::CheckpointError;
use rand::{Rng, SeedableRng};

use super::*;

/// Two checkpoints, of steps 1 and 2, and the files of the newer one with their content.
fn two(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    train(folder, 2, 1);
    let newest = folder.join("step-000000002");
    let files = names(&newest).into_iter().map(|name| newest.join(name));
    files
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

/// The newest must be refused and the one before be taken.
fn is_refused(folder: &Path, what: &str) {
    let latest = Checkpoint::latest(folder).unwrap().expect("the one before");
    assert_eq!(latest.step(), 1, "{what}");
    let [skipped] = latest.skipped() else {
        panic!("{what}")
    };
    assert!(skipped.path.ends_with("step-000000002") && !skipped.problem.is_empty());
}

#[test]
fn a_file_cut_off_at_any_byte_is_refused() {
    let (_temporary, folder) = folder();
    for (path, bytes) in two(&folder) {
        for length in 0..bytes.len() {
            fs::write(&path, &bytes[..length]).unwrap();
            is_refused(&folder, &format!("{} of {}", length, path.display()));
        }
        fs::write(&path, [&bytes[..], b" "].concat()).unwrap();
        is_refused(&folder, "one byte more");
        fs::remove_file(&path).unwrap();
        is_refused(&folder, "missing");
        fs::write(&path, &bytes).unwrap();
        assert_eq!(latest(&folder), Some(2));
    }
}

/// Every bit of the manifest, which nothing but itself protects, and 2,000 of every other file.
#[test]
fn every_changed_bit_is_found() {
    let (_temporary, folder) = folder();
    let files = two(&folder);
    let mut random = rand::rngs::StdRng::seed_from_u64(7);
    let mut places = Vec::new();
    for (index, (path, bytes)) in files.iter().enumerate() {
        let bits = bytes.len() * 8;
        match path.ends_with("manifest.json") {
            true => places.extend((0..bits).map(|bit| (index, bit))),
            false => places.extend((0..2_000).map(|_| (index, random.random_range(0..bits)))),
        }
    }
    assert!(places.len() >= 4 * 2_000);
    for (index, bit) in places {
        let (path, bytes) = &files[index];
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        fs::write(path, changed).unwrap();
        is_refused(&folder, &format!("bit {bit} of {}", path.display()));
        fs::write(path, bytes).unwrap();
    }
    assert_eq!(latest(&folder), Some(2));
}

#[test]
fn files_of_another_checkpoint_are_refused() {
    let (_temporary, folder) = folder();
    for (path, bytes) in two(&folder) {
        let name = path.file_name().unwrap();
        fs::copy(folder.join("step-000000001").join(name), &path).unwrap();
        is_refused(&folder, "a file of step 1");
        fs::write(&path, bytes).unwrap();
    }
    // All of them: a folder with a wrong name.
    fs::rename(folder.join("step-000000002"), folder.join("moved")).unwrap();
    fs::rename(folder.join("step-000000001"), folder.join("step-000000002")).unwrap();
    let error = Checkpoint::latest(&folder).unwrap_err();
    assert!(
        error.to_string().contains("is that of step 1, not 2"),
        "{error}"
    );
}

#[test]
fn a_run_continues_from_the_last_intact_one_and_says_so() {
    let (_temporary, folder) = folder();
    two(&folder);
    fs::write(folder.join("step-000000002/state.json"), "{}").unwrap();
    let mut run = Run::new();
    let mut checkpoints = Checkpoints::builder(&folder)
        .every_updates(1)
        .keep_last(1)
        .in_foreground()
        .open()
        .unwrap();
    let resumed = checkpoints
        .resume_trainer(&mut run.trainer)
        .unwrap()
        .unwrap();
    assert_eq!((resumed.step, resumed.skipped.len()), (1, 1));
    let text = resumed.to_string();
    assert!(text.contains("state.json has 2 bytes, not "), "{text}");
    // Step 2 again, beside the damaged one, which then goes.
    run.until(2, &mut checkpoints, |_, _| {}).unwrap();
    assert_eq!(names(&folder), ["step-000000002-2"]);
    assert_eq!(latest(&folder), Some(2));
}

/// Damaged ones do not count as kept.
#[test]
fn a_damaged_one_takes_no_place_of_a_good_one() {
    let (_temporary, folder) = folder();
    two(&folder);
    fs::write(folder.join("step-000000002/state.json"), "{}").unwrap();
    let mut run = Run::new();
    let builder = Checkpoints::builder(&folder).keep_last(2).in_foreground();
    let mut checkpoints = builder.open().unwrap();
    checkpoints
        .resume_trainer(&mut run.trainer)
        .unwrap()
        .unwrap();
    run.until(3, &mut checkpoints, |_, _| {}).unwrap();
    checkpoints.save_now(&run.trainer).unwrap();
    assert_eq!(names(&folder), ["step-000000001", "step-000000003"]);
}

#[test]
fn a_folder_without_an_intact_one_is_an_error_not_a_new_run() {
    let (_temporary, folder) = folder();
    two(&folder);
    for step in [1, 2] {
        fs::write(
            folder.join(format!("step-00000000{step}/manifest.json")),
            "",
        )
        .unwrap();
    }
    let mut run = Run::new();
    let before = run.bits();
    let mut checkpoints = Checkpoints::builder(&folder).open().unwrap();
    let error = checkpoints.resume_trainer(&mut run.trainer).unwrap_err();
    let Error::Checkpoint(error) = error else {
        panic!("{error}")
    };
    let CheckpointError::NoneIntact { skipped, .. } = *error else {
        panic!("{error}")
    };
    assert_eq!(skipped.len(), 2);
    assert_eq!(run.bits(), before);
}

/// A disk or a network that cannot be read is no damage: no older checkpoint is taken instead, and nothing is deleted.
#[cfg(unix)]
#[test]
fn what_cannot_be_read_is_an_error_and_stays() {
    let (_temporary, folder) = folder();
    for (path, bytes) in two(&folder) {
        // Opening it succeeds and reading fails, as with a bad sector.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let mut run = Run::new();
        let mut checkpoints = Checkpoints::builder(&folder)
            .every_updates(1)
            .open()
            .unwrap();
        for error in [
            checkpoints
                .resume_trainer(&mut run.trainer)
                .map(drop)
                .unwrap_err(),
            Checkpoint::open(folder.join("step-000000002"))
                .map(drop)
                .unwrap_err(),
        ] {
            let Error::Checkpoint(error) = error else {
                panic!("{error}")
            };
            let CheckpointError::File { path: unread, .. } = &*error else {
                panic!("{error}")
            };
            assert_eq!(*unread, path);
        }
        fs::remove_dir(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        assert_eq!(latest(&folder), Some(2), "{}", path.display());
    }
    assert_eq!(names(&folder), ["step-000000001", "step-000000002"]);
}

/// A later version's files are named as such, and other folders are left alone.
#[test]
fn versions_are_checked_and_foreign_folders_stay() {
    let (_temporary, folder) = folder();
    two(&folder);
    let path = folder.join("step-000000002/manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    let later = text.replace("\"version\": 2", "\"version\": 3, \"more\": {}");
    // Without the right checksum it is damage.
    fs::write(&path, &later).unwrap();
    is_refused(&folder, "version 3");
    let (head, crc32) = later.rsplit_once("\"crc32\": \"").unwrap();
    let head = format!("{head}\"crc32\": \"");
    let tail = &crc32[8..];
    let sum = crc32fast::hash(format!("{head}{tail}").as_bytes());
    fs::write(&path, format!("{head}{sum:08x}{tail}")).unwrap();
    let mut run = Run::new();
    let mut checkpoints = Checkpoints::builder(&folder).open().unwrap();
    let error = checkpoints.resume_trainer(&mut run.trainer).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("version 3, this crate reads version 2"),
        "{text}"
    );
    let Error::Checkpoint(error) = error else {
        panic!("{text}")
    };
    assert!(matches!(
        *error,
        CheckpointError::File { action: "read", .. }
    ));
    drop(checkpoints);
    for other in [
        "notes",
        "step-7",
        "step-000000001.rescue",
        "step-000000009.old",
    ] {
        fs::create_dir(folder.join(other)).unwrap();
    }
    drop(Checkpoints::builder(&folder).open().unwrap());
    assert_eq!(names(&folder).len(), 6, "{:?}", names(&folder));
}
