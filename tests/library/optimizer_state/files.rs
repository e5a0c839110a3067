//! Files that are none, are replaced, contended for, or say what cannot be.

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
    let optimizer = AdamW::new(parameters, ParamsAdamW::default()).unwrap();
    optimizer.state_dict().unwrap().save(&file).unwrap();
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
    let optimizer = AdamW::new(parameters, ParamsAdamW::default()).unwrap();
    let mut dict = optimizer.state_dict().unwrap();
    dict.save(&file).unwrap();
    dict.metadata.insert("note".into(), "second".into());
    dict.save(&file).unwrap();
    assert_eq!(StateDict::load(&file).unwrap().metadata["note"], "second");
    let folder = std::fs::read_dir(std::env::temp_dir()).unwrap();
    let name = file.0.file_name().unwrap().to_string_lossy().into_owned();
    let left = folder.filter(|entry| {
        let other = entry
            .as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .into_owned();
        other.starts_with(&name) && other != name
    });
    assert_eq!(left.count(), 0);
}

#[test]
fn a_file_can_be_saved_by_several_threads() {
    let file = File::new("contended");
    let parameters = named(DType::F32, &[0, 1, 2, 3]);
    let optimizer = AdamW::new(parameters, ParamsAdamW::default()).unwrap();
    let dict = optimizer.state_dict().unwrap();
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

/// Metadata that a file should not have: refused, and nothing changes.
#[test]
fn words_are_checked_as_in_code() {
    let parameters = named(DType::F32, &[0]);
    let mut optimizer = Sgd::new(parameters.clone(), ParamsSgd::default()).unwrap();
    let dict = optimizer.state_dict().unwrap();
    for (name, word) in [
        ("momentum", "0.9"), // for which nothing is kept
        ("lr", "-1"),
        ("lr", "fast"),
        ("steps", "18446744073709551615"),
        ("group.0.is_frozen", "7"),
    ] {
        let mut dict = dict.clone();
        dict.metadata.insert(name.to_owned(), word.to_owned());
        let error = optimizer.load_state_dict(&dict).unwrap_err();
        assert!(matches!(error, Error::State(_)), "{name} {word}: {error}");
        assert_eq!(*optimizer.params(), ParamsSgd::default());
    }
    let mut adamw = AdamW::new(parameters, ParamsAdamW::default()).unwrap();
    let mut dict = adamw.state_dict().unwrap();
    let step = Tensor::new(2f32.powi(64), &Device::Cpu).unwrap();
    dict.tensors.insert("layer.0.step".to_owned(), step);
    let error = adamw.load_state_dict(&dict).unwrap_err();
    assert!(error.to_string().contains("layer.0.step"), "{error}");
}
