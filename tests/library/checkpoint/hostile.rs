//! Checkpoints that somebody else has made up: names that leave the folder, pipes, sizes that nobody has.

use std::fs;
use std::sync::mpsc;
use std::time::Duration;

use candle_headroom::Error;
use candle_headroom::checkpoint::{Checkpoint, load_model};
use candle_headroom::error::CheckpointError;
use serde_json::{Value, json};

use super::*;

/// Changes a manifest and gives it the right checksum.
fn forge(checkpoint: &Path, change: impl FnOnce(&mut Value)) {
    let path = checkpoint.join("manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    let mut manifest: Value = serde_json::from_str(&text).unwrap();
    change(&mut manifest);
    let files = manifest["files"].as_object().unwrap();
    // As the crate writes it, field by field.
    let mut entries = Vec::new();
    for (name, print) in files {
        entries.push(format!(
            "    {}: {{\n      \"bytes\": {},\n      \"crc32\": {}\n    }}",
            json!(name),
            print["bytes"],
            print["crc32"]
        ));
    }
    let with = |crc32: &str| {
        format!(
            "{{\n  \"version\": {},\n  \"step\": {},\n  \"files\": {{\n{}\n  }},\n  \"crc32\": \"{crc32}\"\n}}",
            manifest["version"],
            manifest["step"],
            entries.join(",\n")
        )
    };
    let crc32 = crc32fast::hash(with("").as_bytes());
    fs::write(&path, with(&format!("{crc32:08x}"))).unwrap();
}

#[track_caller]
fn damaged(checkpoint: &Path) -> String {
    match Checkpoint::open(checkpoint) {
        Err(Error::Checkpoint(error)) => match *error {
            CheckpointError::Damaged { problem, .. } => problem,
            other => panic!("{other}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_of_a_manifest_are_files_of_its_folder() {
    let (_temporary, folder) = folder();
    train(&folder, 1, 1);
    let checkpoint = folder.join("step-000000001");
    forge(&checkpoint, |_| {});
    assert!(Checkpoint::open(&checkpoint).is_ok(), "forged as it was");
    fs::copy(
        checkpoint.join("model.safetensors"),
        folder.join("model-outside.safetensors"),
    )
    .unwrap();
    let absolute = folder.join("model-outside.safetensors");
    for name in [
        "../model-outside.safetensors",
        "./model.safetensors",
        "sub/../model.safetensors",
        absolute.to_str().unwrap(),
        "..",
        "",
    ] {
        forge(&checkpoint, |manifest| {
            let files = manifest["files"].as_object_mut().unwrap();
            files.retain(|known, _| !known.contains(['/', '.']) || known == "state.json");
            let bytes = fs::read(&absolute).unwrap();
            let crc32 = format!("{:08x}", crc32fast::hash(&bytes));
            files.insert(
                name.to_owned(),
                json!({"bytes": bytes.len(), "crc32": crc32}),
            );
        });
        let problem = damaged(&checkpoint);
        let expected = format!("manifest.json: `{name}` is not a file of this folder");
        assert_eq!(problem, expected);
    }
}

#[test]
fn a_manifest_has_a_size_that_a_manifest_may_have() {
    let (_temporary, folder) = folder();
    train(&folder, 1, 1);
    let checkpoint = folder.join("step-000000001");
    let path = checkpoint.join("manifest.json");
    // Sparse, so that it takes no space.
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(40 << 20).unwrap();
    let problem = damaged(&checkpoint);
    assert!(
        problem.contains("manifest.json has 41943040 bytes, more than"),
        "{problem}"
    );
}

/// A pipe without a writer would block for ever.
#[cfg(unix)]
#[test]
fn a_pipe_in_the_place_of_any_file_is_an_error_and_no_wait() {
    use std::os::unix::ffi::OsStrExt;

    let pipe = |path: &Path| {
        fs::remove_file(path).unwrap();
        let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a path that ends with a zero.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    };
    let in_time = |what: &str, work: Box<dyn FnOnce() -> Option<String> + Send>| {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || sender.send(work()));
        let text = receiver.recv_timeout(Duration::from_secs(20));
        let text = text.unwrap_or_else(|_| panic!("{what} blocks"));
        let text = text.unwrap_or_else(|| panic!("{what} was read"));
        assert!(text.contains("not a regular file"), "{what}: {text}");
    };
    let (_temporary, folder) = folder();
    train(&folder, 1, 1);
    let checkpoint = folder.join("step-000000001");
    for name in names(&checkpoint) {
        let (path, bytes) = (
            checkpoint.join(&name),
            fs::read(checkpoint.join(&name)).unwrap(),
        );
        pipe(&path);
        let opened = checkpoint.clone();
        let open = move || Checkpoint::open(opened).err().map(|it| it.to_string());
        in_time(&name, Box::new(open));
        fs::remove_file(&path).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let model = checkpoint.join("model.safetensors");
    for name in ["manifest.json", "model.safetensors.index.json"] {
        let path = checkpoint.join(name);
        let _ = fs::remove_file(&path);
        fs::write(&path, "").unwrap();
    }
    // A model's folder with an index, and a lock.
    fs::remove_file(checkpoint.join("manifest.json")).unwrap();
    fs::remove_file(&model).unwrap();
    let index = checkpoint.join("model.safetensors.index.json");
    fs::write(
        &index,
        json!({"weight_map": {"w": "part.safetensors"}}).to_string(),
    )
    .unwrap();
    fs::write(checkpoint.join("part.safetensors"), "").unwrap();
    pipe(&checkpoint.join("part.safetensors"));
    let loaded = checkpoint.clone();
    let load = move || {
        let none: Vec<(String, candle_core::Var)> = Vec::new();
        let loaded = load_model(loaded).into_parameters(none);
        loaded.err().map(|error| error.to_string())
    };
    in_time("a model's part", Box::new(load));
    let lock = folder.join(".lock");
    pipe(&lock);
    let (sender, receiver) = mpsc::channel();
    let opened = folder.clone();
    std::thread::spawn(move || sender.send(Checkpoints::builder(opened).open().is_err()));
    assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(true));
}

/// A file that is written while a checkpoint is open is noticed when it is read.
#[test]
fn a_file_that_changes_after_it_was_verified_is_an_error() {
    let (_temporary, folder) = folder();
    let run = train(&folder, 1, 1);
    let checkpoint = Checkpoint::latest(&folder).unwrap().unwrap();
    let path = checkpoint.path().join("optimizer.safetensors");
    assert!(checkpoint.state().is_ok());
    let bytes = fs::read(&path).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    fs::write(&path, &bytes).unwrap();
    let error = checkpoint.state().unwrap_err().to_string();
    assert!(
        error.contains("optimizer.safetensors") && error.contains("changed"),
        "{error}"
    );
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let mut other = Run::new();
    let before = other.bits();
    let error = checkpoint
        .resume(&mut other.trainer)
        .unwrap_err()
        .to_string();
    assert!(error.contains("optimizer.safetensors"), "{error}");
    assert_eq!(other.bits(), before);
    drop(run);
}
