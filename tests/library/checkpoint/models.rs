use candle_core::{DType, Device, Var};
use candle_headroom::ByteSize;
use candle_headroom::checkpoint::{Checkpoint, load_model};
use candle_nn::{VarBuilder, VarMap};

use super::run::differing;
use super::*;

fn var(shape: &[usize]) -> Var {
    Var::zeros(shape, DType::F32, &Device::Cpu).unwrap()
}

/// The model of a run of 8 × 4 parameters, after two updates in several files.
fn sharded(folder: &Path) -> Run {
    let builder = Checkpoints::builder(folder).shard_size(ByteSize(100));
    let mut checkpoints = builder.open().unwrap();
    let mut run = Run::sized(8, 4);
    run.step().unwrap();
    checkpoints.save_now(&run.trainer).unwrap();
    run
}

#[test]
fn large_models_are_split_as_hugging_face_does() {
    let (_temporary, folder) = folder();
    let saved = sharded(&folder);
    let path = folder.join("step-000000001");
    let expected = [
        "manifest.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ];
    assert_eq!(names(&path)[..4], expected);
    let index = std::fs::read_to_string(path.join("model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    assert_eq!(index["metadata"]["total_size"], 36 * 4);
    let mut files: Vec<_> = index["weight_map"].as_object().unwrap().values().collect();
    files.sort_by_key(|file| file.to_string());
    assert_eq!(files, [expected[1], expected[2]]);

    let mut run = Run::sized(8, 4);
    let mut checkpoints = Checkpoints::builder(&folder).open().unwrap();
    checkpoints
        .resume_trainer(&mut run.trainer)
        .unwrap()
        .unwrap();
    assert_eq!(differing(&run.bits(), &saved.bits()), 0);
}

/// From a run, a checkpoint, a folder as the hub has it, and a file.
#[test]
fn a_model_is_loaded_without_a_trainer() {
    let (temporary, folder) = folder();
    let saved = sharded(&folder);
    let expected = saved.bits();
    let path = folder.join("step-000000001");
    let hub = temporary.path().join("hub");
    std::fs::create_dir(&hub).unwrap();
    for file in names(&path).iter().filter(|file| file.starts_with("model")) {
        std::fs::copy(path.join(file), hub.join(file)).unwrap();
    }
    let single = temporary.path().join("single");
    let mut checkpoints = Checkpoints::builder(&single).open().unwrap();
    let single = checkpoints.save_now(&saved.trainer).unwrap();
    let file = single.join("model.safetensors");
    for from in [folder.clone(), path, hub.clone(), single, file] {
        let (w, b) = (var(&[8, 4]), var(&[4]));
        let named = vec![("layer.weight", w.clone()), ("layer.bias", b.clone())];
        load_model(&from).into_parameters(named).unwrap();
        let flat = |var| {
            crate::support::flat(var)
                .into_iter()
                .map(f64::to_bits)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            flat(&w),
            expected["model.layer.weight"],
            "{}",
            from.display()
        );
        assert_eq!(flat(&b), expected["model.layer.bias"]);
    }

    // An index that leads out of its folder, and one that names what is not there.
    let index = hub.join("model.safetensors.index.json");
    let text = std::fs::read_to_string(&index).unwrap();
    for (change, words) in [
        (
            text.replace("model-00001", "../model-00001"),
            "is not a file of this folder",
        ),
        (
            text.replace("layer.bias", "layer.other"),
            "does not hold `layer.other`",
        ),
        ("{".to_owned(), "index.json: "),
    ] {
        std::fs::write(&index, change).unwrap();
        let error = load_model(&hub)
            .into_parameters(vec![("w", var(&[1]))])
            .unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    let error = load_model(temporary.path())
        .into_parameters(vec![("w", var(&[1]))])
        .unwrap_err();
    assert!(
        error.to_string().contains("it has no checkpoint"),
        "{error}"
    );
}

#[test]
fn options_allow_differences_and_nothing_else() {
    let (_temporary, folder) = folder();
    train(&folder, 1, 1);
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let zero = candle_nn::Init::Const(0.);
    let weight = vb.get_with_hints((3, 2), "encoder.0.weight", zero).unwrap();
    let head = vb.get_with_hints(5, "head.weight", zero).unwrap();

    let error = load_model(&folder).into_parameters(&varmap).unwrap_err();
    let text = error.to_string();
    for words in [
        "missing there: encoder.0.weight, head.weight",
        "unexpected: layer.bias, layer.weight",
    ] {
        assert!(text.contains(words), "{text}");
    }
    let renamed = || load_model(&folder).rename("layer.*", "encoder.0.*");
    let error = renamed()
        .allow_missing(["head.*"])
        .into_parameters(&varmap)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("does not fit; unexpected: encoder.0.bias; "),
        "{error}"
    );
    assert!(
        crate::support::flat(&weight)
            .iter()
            .all(|value| *value == 0.),
        "nothing was set"
    );

    let loading = renamed()
        .allow_missing(["head.*"])
        .allow_unexpected(["*.bias"]);
    loading.into_parameters(&varmap).unwrap();
    assert!(
        crate::support::flat(&weight)
            .iter()
            .all(|value| *value != 0.)
    );
    assert!(crate::support::flat(&head).iter().all(|value| *value == 0.));

    let error = load_model(&folder)
        .rename("layer.*", "same")
        .into_parameters(&varmap);
    let error = error.unwrap_err();
    assert!(
        error.to_string().contains("two tensors the name `same`"),
        "{error}"
    );
}

/// A file that is no safetensors file, or one cut off, is an error with its name.
#[test]
fn a_damaged_file_is_refused() {
    let (temporary, folder) = folder();
    train(&folder, 1, 1);
    let bytes = std::fs::read(folder.join("step-000000001/model.safetensors")).unwrap();
    let file = temporary.path().join("copy.safetensors");
    for length in 0..bytes.len() {
        std::fs::write(&file, &bytes[..length]).unwrap();
        let weight = var(&[3, 2]);
        let error = load_model(&file)
            .into_parameters(vec![("layer.weight", weight)])
            .unwrap_err();
        assert!(
            error.to_string().contains("copy.safetensors is damaged"),
            "{length}: {error}"
        );
    }
    assert!(Checkpoint::open(temporary.path()).is_err());
}

/// More files than a process may have open.
#[test]
fn a_model_in_many_files() {
    let temporary = super::run::memory_folder();
    let named = |value: f32| {
        let var = |index| (format!("p{index}"), Var::new(value, &Device::Cpu).unwrap());
        (0..1500).map(var).collect::<Vec<_>>()
    };
    let saved = candle_headroom::Sgd::builder(named(3.))
        .learning_rate(0.1)
        .build()
        .unwrap();
    let trainer = candle_headroom::AdaptiveTrainer::builder(saved)
        .build()
        .unwrap();
    let builder = Checkpoints::builder(temporary.path()).shard_size(ByteSize(1));
    let path = builder.open().unwrap().save_now(&trainer).unwrap();
    assert!(path.join("model-01500-of-01500.safetensors").exists());
    let loaded = named(0.);
    load_model(temporary.path())
        .into_parameters(loaded.clone())
        .unwrap();
    assert!(
        loaded
            .iter()
            .all(|(_, var)| var.to_scalar::<f32>().unwrap() == 3.)
    );
}
