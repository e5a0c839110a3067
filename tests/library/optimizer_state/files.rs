//! Files: torn, replaced, contended for, and with numbers that cannot be.

use super::*;

#[test]
fn files_that_are_none_are_errors() {
    let missing = StateDict::load("no/such/folder/state.safetensors").unwrap_err();
    assert!(missing.to_string().contains("no/such/folder"), "{missing}");
    let dict = StateDict::default();
    let unwritable = dict.save("no/such/folder/state.safetensors").unwrap_err();
    assert!(
        unwritable.to_string().contains("no/such/folder"),
        "{unwritable}"
    );
    let file = File::new("torn");
    let parameters = named(DType::F32, &[0]);
    let optimizer = AdamW::builder(parameters)
        .params(ParamsAdamW::default())
        .build()
        .unwrap();
    optimizer.state().unwrap().save(&file).unwrap();
    let whole = std::fs::read(&file).unwrap();
    for len in 0..whole.len() {
        std::fs::write(&file, &whole[..len]).unwrap();
        assert!(
            StateDict::load(&file).is_err(),
            "{len} of {} bytes",
            whole.len()
        );
    }
}

#[test]
fn a_file_is_replaced_as_a_whole() {
    let file = File::new("replaced");
    let parameters = named(DType::F32, &[0]);
    let optimizer = AdamW::builder(parameters)
        .params(ParamsAdamW::default())
        .build()
        .unwrap();
    let mut dict = optimizer.state().unwrap();
    dict.save(&file).unwrap();
    dict.metadata.insert("note".into(), "second".into());
    dict.save(&file).unwrap();
    assert_eq!(StateDict::load(&file).unwrap().metadata["note"], "second");
    let name = file.0.file_name().unwrap().to_string_lossy().into_owned();
    let folder = std::fs::read_dir(std::env::temp_dir()).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    assert_eq!(names.filter(|other| other.contains(&name)).count(), 1);
}

/// Temporary files in a folder.
pub fn left(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with('.')).count()
}

#[test]
fn a_file_can_be_saved_by_several_threads() {
    let file = File::new("contended");
    let parameters = named(DType::F32, &[0, 1, 2, 3]);
    let optimizer = AdamW::builder(parameters)
        .params(ParamsAdamW::default())
        .build()
        .unwrap();
    let dict = optimizer.state().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    dict.save(&file).unwrap();
                }
            });
        }
    });
    assert_eq!(
        StateDict::load(&file).unwrap().tensors.len(),
        dict.tensors.len()
    );
}

/// Numbers that a file should not have: refused, and nothing changes.
#[test]
fn saved_numbers_are_checked_as_in_code() {
    let parameters = named(DType::F32, &[0]);
    let mut optimizer = Sgd::builder(parameters.clone()).build().unwrap();
    let state = optimizer.state().unwrap();
    let number = |number: f64| serde_json::Value::from(number);
    for (path, value) in [
        ("/params/momentum", number(0.9)), // for which there is no state
        ("/params/lr", number(-1.)),
        ("/params/lr", "fast".into()),
        ("/params/lr", serde_json::Value::Null), // as JSON has NaN
        ("/steps", u64::MAX.into()),
        ("/groups/0/frozen", 7.into()),
        ("/groups/0/learning_rate_factor", number(-1.)),
    ] {
        let mut state = state.clone();
        change(&mut state, |saved| {
            *saved.pointer_mut(path).unwrap() = value.clone()
        });
        let error = optimizer.load_state(&state).unwrap_err();
        assert!(matches!(error, Error::State(_)), "{path} {value}: {error}");
        assert_eq!(*optimizer.params(), ParamsSgd::default());
    }
    let mut torn = state.clone();
    torn.metadata
        .insert("optimizer".into(), "{\"name\":".into());
    assert!(matches!(optimizer.load_state(&torn), Err(Error::State(_))));

    let mut adamw = AdamW::builder(parameters).build().unwrap();
    let mut state = adamw.state().unwrap();
    let step = Tensor::new(2f32.powi(64), &Device::Cpu).unwrap();
    state.tensors.insert("layer.0.step".to_owned(), step);
    let error = adamw.load_state(&state).unwrap_err();
    assert!(error.to_string().contains("layer.0.step"), "{error}");
}

/// Every digit of a number comes back.
#[test]
fn numbers_come_back_exactly() {
    let parameters = named(DType::F32, &[0]);
    for seed in 1..2000 {
        let lr = 1e-3 / f64::from(seed) * 1.234_567_890_123_456_7;
        let saved = Sgd::builder(parameters.clone())
            .learning_rate(lr)
            .build()
            .unwrap();
        let mut loaded = Sgd::builder(parameters.clone()).build().unwrap();
        loaded.load_state(&saved.state().unwrap()).unwrap();
        assert_eq!(loaded.params().lr.to_bits(), lr.to_bits());
    }
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

    use super::*;

    fn mode(path: impl AsRef<Path>) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_file_keeps_its_mode() {
        let file = File::new("mode");
        let plain = File::new("plain");
        std::fs::write(&plain, "").unwrap();
        let state = StateDict::default();
        state.save(&file).unwrap();
        assert_eq!(mode(&file), mode(&plain), "as the umask makes a new file");
        for bits in [0o644, 0o600, 0o664] {
            std::fs::set_permissions(&file, PermissionsExt::from_mode(bits)).unwrap();
            state.save(&file).unwrap();
            assert_eq!(mode(&file), bits);
        }
    }

    #[test]
    fn what_is_no_regular_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let fifo = folder.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(made.unwrap().success());
        let inner = folder.path().join("folder");
        std::fs::create_dir(&inner).unwrap();
        // Root could replace a device file.
        let device = folder.path().join("null");
        let mut made = std::process::Command::new("mknod");
        made.arg(&device)
            .args(["c", "1", "3"])
            .stderr(std::process::Stdio::null());
        let has_device = made.status().is_ok_and(|status| status.success());
        let link = folder.path().join("link");
        symlink(&socket, &link).unwrap();
        let device = has_device.then_some(device);
        for path in [&socket, &fifo, &inner, &link].into_iter().chain(&device) {
            let kind = std::fs::symlink_metadata(path).unwrap().file_type();
            let error = StateDict::default().save(path).unwrap_err();
            assert!(error.to_string().contains("not a regular file"), "{error}");
            assert!(!kind.is_file() && !kind.is_block_device());
            assert_eq!(std::fs::symlink_metadata(path).unwrap().file_type(), kind);
        }
        assert_eq!(left(folder.path()), 0);
    }

    #[test]
    fn a_symbolic_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [real, link] = ["real", "link"].map(|name| folder.path().join(name));
        std::fs::write(&real, "old").unwrap();
        symlink("real", &link).unwrap();
        StateDict::default().save(&link).unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        StateDict::load(&real).unwrap();
        // As `cp`: not through a link to nothing.
        let dangling = folder.path().join("dangling");
        symlink("nothing", &dangling).unwrap();
        StateDict::default().save(&dangling).unwrap_err();
    }
}
