//! Folders that are saved and loaded, and those that do not fit.

use std::fs;

use candle_core::{DType, Device, Tensor};
use candle_headroom::nn::lora::Lora;
use candle_headroom::nn::{VarBuilder, VarMap};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;

use super::compared::{adapted, whole};
use super::{FAMILIES, case, copy, edit, numbers, text};
use headroom_finetune::model::{Base, Config, Decoder, initialize, load_into, peft, save_model};

const TOKENS: [u32; 8] = [3, 1, 4, 1, 5, 9, 2, 6];
const WEIGHTS: &str = "model.safetensors";

fn logits(decoder: &Decoder) -> Vec<f32> {
    numbers(&decoder.forward(&text(&TOKENS)).unwrap())
}

#[test]
fn a_saved_model_is_the_same_model() {
    for name in FAMILIES {
        let trained = whole(&case(name)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("new");
        save_model(&folder, &trained.config, &trained.vars).unwrap();
        let again = whole(&folder).unwrap();
        // Read from `rope_parameters`, written as `rope_theta` and `rope_scaling`.
        assert_eq!(again.config, trained.config, "{name}");
        assert_eq!(logits(&again.decoder), logits(&trained.decoder), "{name}");
        let bytes = fs::read(folder.join(WEIGHTS)).unwrap();
        let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
        assert_eq!(
            metadata.tensors().contains_key("lm_head.weight"),
            !trained.config.tie_word_embeddings
        );
    }
}

#[test]
fn saved_adapters_are_the_same_adapters() {
    for name in FAMILIES {
        let (base, folder) = (case(name), tempfile::tempdir().unwrap());
        let trained = adapted(&base, &base.join("adapter")).unwrap();
        let lora = peft::read_options(&base.join("adapter")).unwrap();
        let origin = ("someone/tiny", Some("v2"));
        peft::save(folder.path(), origin, &lora, &trained.vars).unwrap();
        let options = fs::read(folder.path().join("adapter_config.json")).unwrap();
        let options: serde_json::Value = serde_json::from_slice(&options).unwrap();
        assert_eq!(options["base_model_name_or_path"], "someone/tiny");
        assert_eq!(options["revision"], "v2");
        assert_eq!(peft::read_options(folder.path()).unwrap(), lora, "{name}");
        let again = adapted(&base, folder.path()).unwrap();
        assert_eq!(logits(&again.decoder), logits(&trained.decoder), "{name}");
    }
}

#[test]
fn a_new_model_is_seeded() {
    let config = Config {
        vocab_size: 16,
        hidden_size: 16,
        head_dim: 4,
        intermediate_size: 24,
        num_hidden_layers: 2,
        ..Config::default()
    };
    let make = |seed| {
        let vars = VarMap::new();
        let base = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
        let decoder = Decoder::new(&config, base, None).unwrap();
        let mut rng = StdRng::seed_from_u64(seed);
        initialize(&vars, config.initializer_range, &mut rng).unwrap();
        (decoder, vars)
    };
    let (decoder, vars) = make(1);
    assert_eq!(logits(&decoder), logits(&make(1).0));
    assert_ne!(logits(&decoder), logits(&make(2).0));
    let table = vars.data().lock().unwrap()["model.embed_tokens.weight"].clone();
    let deviation = table.sqr().unwrap().mean_all().unwrap().sqrt().unwrap();
    let deviation = deviation.to_scalar::<f32>().unwrap();
    // 256 numbers: the deviation of their deviation is 4 %.
    assert!((0.017..0.023).contains(&deviation), "{deviation}");
}

/// More than the 64 MiB that are read at once: three pieces, the last of which is not whole.
#[test]
fn a_large_tensor_is_read_in_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let (rows, width) = (130, 1 << 18);
    let rows_of = Tensor::arange(0f32, rows as f32, &Device::Cpu).unwrap();
    let row = Tensor::arange(0f32, width as f32, &Device::Cpu).unwrap();
    let large = rows_of.unsqueeze(1).unwrap().broadcast_mul(&row).unwrap();
    let file = folder.path().join(WEIGHTS);
    candle_core::safetensors::save(&[("large", large.clone())].into(), file).unwrap();
    for dtype in [DType::F32, DType::BF16] {
        let weights = Base::open(folder.path(), dtype, &Device::Cpu).unwrap();
        let read = weights.vb.get((rows, width), "large").unwrap();
        let expected = large.to_dtype(dtype).unwrap();
        assert_eq!(numbers(&read), numbers(&expected), "{dtype:?}");
    }
}

#[test]
fn a_model_in_shards_is_read_by_its_index() {
    let expected = logits(&whole(&case("qwen3")).unwrap().decoder);
    let folder = copy("qwen3");
    let single = folder.path().join(WEIGHTS);
    let tensors = candle_core::safetensors::load(&single, &Device::Cpu).unwrap();
    fs::remove_file(single).unwrap();
    let mut map = serde_json::Map::new();
    let mut shards = [
        Default::default(),
        std::collections::HashMap::<String, Tensor>::new(),
    ];
    for (at, (name, tensor)) in tensors.into_iter().enumerate() {
        map.insert(name.clone(), format!("shard-{}.safetensors", at % 2).into());
        shards[at % 2].insert(name, tensor);
    }
    for (at, shard) in shards.iter().enumerate() {
        let path = folder.path().join(format!("shard-{at}.safetensors"));
        candle_core::safetensors::save(shard, path).unwrap();
    }
    let index = folder.path().join("model.safetensors.index.json");
    fs::write(&index, json!({ "weight_map": map }).to_string()).unwrap();
    let trained = whole(folder.path()).unwrap();
    assert_eq!(logits(&trained.decoder), expected);
    let base = Base::open(folder.path(), DType::F32, &Device::Cpu).unwrap();
    let constant = Decoder::new(&trained.config, base, None).unwrap();
    assert_eq!(logits(&constant), expected);
    // Saved over it, the one file counts.
    save_model(folder.path(), &trained.config, &trained.vars).unwrap();
    assert!(!index.exists());
    fs::write(
        &index,
        json!({ "weight_map": { "a": "lost.safetensors" } }).to_string(),
    )
    .unwrap();
    let error = refusal(folder.path());
    assert!(error.contains("lost.safetensors"), "{error}");
    fs::write(&index, "{").unwrap();
    assert!(refusal(folder.path()).contains("index.json"));
    // An index names files of its folder.
    let outside = copy("qwen3");
    let absolute = outside.path().join(WEIGHTS);
    for name in [
        absolute.to_str().unwrap(),
        "../x.safetensors",
        "a/b.safetensors",
        "..",
        "",
    ] {
        let map = json!({ "weight_map": { "a": name } });
        fs::write(&index, map.to_string()).unwrap();
        let expected = format!("`{name}` is not a file of this folder");
        assert!(
            refusal(folder.path()).contains(&expected),
            "{}",
            refusal(folder.path())
        );
    }
}

/// Why a folder's weights are refused.
fn refusal(folder: &std::path::Path) -> String {
    let opened = Base::open(folder, DType::F32, &Device::Cpu);
    format!("{:#}", opened.err().expect("an error"))
}

#[test]
fn weights_that_cannot_be_read_are_named() {
    let folder = copy("llama-2");
    let file = folder.path().join(WEIGHTS);
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() - 100]).unwrap();
    assert!(refusal(folder.path()).contains(WEIGHTS));
    fs::write(&file, "").unwrap();
    assert!(refusal(folder.path()).contains(WEIGHTS));
    fs::remove_file(&file).unwrap();
    let error = refusal(folder.path());
    assert!(error.contains("has no model.safetensors and no"), "{error}");
}

/// A file that becomes shorter while the program has it open would end a process that had mapped it.
#[test]
fn weights_that_change_while_they_are_open_are_an_error() {
    let folder = copy("llama-2");
    let config = whole(folder.path()).unwrap().config;
    for is_shorter in [false, true] {
        let base = Base::open(folder.path(), DType::F32, &Device::Cpu).unwrap();
        let file = fs::File::options()
            .write(true)
            .open(folder.path().join(WEIGHTS))
            .unwrap();
        match is_shorter {
            true => file.set_len(100).unwrap(),
            false => {
                let time = std::time::SystemTime::now() + std::time::Duration::from_secs(7);
                file.set_modified(time).unwrap();
            }
        }
        let error = Decoder::new(&config, base, None).err().expect("an error");
        let text = format!("{error:#}");
        assert!(text.contains("changed while it was open"), "{text}");
    }
}

#[test]
fn all_weights_that_do_not_fit_are_named_and_none_is_loaded() {
    let folder = copy("llama-2");
    let file = folder.path().join(WEIGHTS);
    let trained = whole(folder.path()).unwrap();
    let before = logits(&trained.decoder);
    let mut tensors = candle_core::safetensors::load(&file, &Device::Cpu).unwrap();
    tensors.remove("model.norm.weight").unwrap();
    tensors.remove("model.layers.1.mlp.up_proj.weight").unwrap();
    let other = Tensor::zeros((3, 8), DType::F32, &Device::Cpu).unwrap();
    tensors.insert("lm_head.weight".to_owned(), other);
    let first = tensors["model.embed_tokens.weight"].zeros_like().unwrap();
    tensors.insert("model.embed_tokens.weight".to_owned(), first);
    candle_core::safetensors::save(&tensors, &file).unwrap();
    let error = format!("{:#}", load_into(&trained.vars, folder.path()).unwrap_err());
    for part in [
        "model.norm.weight is missing",
        "model.layers.1.mlp.up_proj.weight is missing",
        "lm_head.weight has shape [3, 8], the model needs [16, 8]",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(logits(&trained.decoder), before);
    let base = Base::open(folder.path(), DType::F32, &Device::Cpu).unwrap();
    let error = Decoder::new(&trained.config, base, None)
        .err()
        .expect("an error");
    assert!(error.to_string().contains("lm_head.weight"), "{error}");
}

#[test]
fn adapters_of_another_model_are_refused() {
    let folder = copy("llama-2");
    let trained = adapted(folder.path(), &folder.path().join("adapter")).unwrap();
    let others = case("llama-3").join("adapter");
    let error = format!("{:#}", peft::load_into(&others, &trained.vars).unwrap_err());
    let name = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight";
    assert!(
        error.contains(&format!("{name} belongs to no parameter")),
        "{error}"
    );
    let error = format!(
        "{:#}",
        peft::load_into(&case("llama-2"), &trained.vars).unwrap_err()
    );
    assert!(error.contains("adapter_model.safetensors"), "{error}");
    let lora = Lora {
        rank: 5,
        ..peft::read_options(&folder.path().join("adapter")).unwrap()
    };
    let vars = VarMap::new();
    let base = Base::open(folder.path(), DType::F32, &Device::Cpu).unwrap();
    Decoder::new(&trained.config, base, Some((&lora, &vars))).unwrap();
    let error = format!(
        "{:#}",
        peft::load_into(&folder.path().join("adapter"), &vars).unwrap_err()
    );
    assert!(
        error.contains("has shape [2, 8], the model needs [5, 8]"),
        "{error}"
    );
    edit(
        &folder.path().join("adapter/adapter_config.json"),
        "r",
        json!(0),
    );
    let read = peft::read_options(&folder.path().join("adapter"));
    assert!(format!("{:#}", read.unwrap_err()).contains("got 0"));
    let lora = Lora { rank: 0, ..lora };
    let base = Base::open(folder.path(), DType::F32, &Device::Cpu).unwrap();
    let made = Decoder::new(&trained.config, base, Some((&lora, &vars)));
    assert!(made.err().expect("an error").to_string().contains("got 0"));
}
