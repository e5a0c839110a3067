//! `headroom estimate`. That its figures are right is for `tests/estimates`, which measures training.

mod refused;

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};

use super::{Answer, is_readable, path, refuses, run};

/// SmolLM2-135M, whose card names 134,515,008 parameters.
fn smol() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "tie_word_embeddings": true,
        "torch_dtype": "bfloat16",
    })
}

fn folder_with(config: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

fn estimate(folder: &Path, arguments: &[&str]) -> Value {
    let arguments = [&["estimate", path(folder), "--json"], arguments].concat();
    let Answer { text, errors, .. } = run(&arguments);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{errors}"))
}

/// Numbers of parameters as the models' cards and transformers have them.
#[test]
fn parameters_of_known_models_are_counted() {
    let with = |more: Value| {
        let mut config = smol();
        config
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let folder = folder_with(&config);
        estimate(folder.path(), &["--memory", "1GiB"])["parameters"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(with(json!({})), 134_515_008);
    let llama_8b = json!({
        "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": false,
    });
    assert_eq!(with(llama_8b), 8_030_261_248);
    let mistral_7b = json!({
        "model_type": "mistral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": false,
    });
    assert_eq!(with(mistral_7b), 7_241_732_096);
    let qwen2_half = json!({
        "model_type": "qwen2", "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2,
    });
    assert_eq!(with(qwen2_half), 494_032_768);
    let qwen3_small = json!({
        "model_type": "qwen3", "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    });
    assert_eq!(with(qwen3_small), 596_049_920);
}

#[test]
fn it_says_what_fits_and_what_helps() {
    let folder = folder_with(&smol());
    let folder = path(folder.path());
    let asked = [
        "estimate", folder, "--batch", "16", "--length", "1024", "--memory", "8GiB", "--memory",
        "80GiB",
    ];
    let Answer {
        status,
        text,
        errors,
    } = run(&asked);
    assert_eq!((status, &*errors), (Some(0), ""), "{text}");
    is_readable(&text);
    for part in [
        "llama: 134,515,008 parameters, bf16, all trained",
        "peak with a micro-batch of 16 x 1024 tokens",
        "a GPU\n  8.0 GiB, 512.0 MiB of it for CUDA\n  the micro-batch fits: blocks recomputed, linear_cross_entropy\n",
        "a GPU\n  80.0 GiB, 512.0 MiB of it for CUDA\n  the micro-batch fits: layers kept, linear_cross_entropy\n",
        "1. each block in `nn::recompute` (saves about ",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    let few = run(&["estimate", folder, "--length", "64", "--memory", "8GiB"]).text;
    let first = "what would reduce the peak with layers kept\n  1. adapters of rank 8 (LoRA) (saves about 1";
    assert!(few.contains(first), "{few}");
    let none = run(&["estimate", folder, "--batch", "1000", "--memory", "8GiB"]);
    assert_eq!(none.status, Some(1), "{}", none.text);
    assert!(
        none.text.contains("\n  the micro-batch does not fit\n"),
        "{}",
        none.text
    );
}

/// Eight GPUs as the simulated NVML describes them, each with 2 GiB.
#[cfg(target_os = "linux")]
#[test]
fn the_gpus_of_the_machine_are_asked() {
    let folder = folder_with(&smol());
    let library = crate::nvml::library().parent().unwrap();
    let mut command = std::process::Command::new(super::PROGRAM);
    command.arg("estimate").arg(folder.path());
    command
        .args(["--lora-rank", "8", "--length", "64"])
        .env("LD_LIBRARY_PATH", library);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    is_readable(&text);
    assert!(text.contains("\neach of 8 GPUs, Simulated H100"), "{text}");
    let fits = "\n  2.0 GiB, 512.0 MiB of it for CUDA\n  the micro-batch fits: layers kept";
    assert!(text.contains(fits), "{text}");
}

/// The largest micro-batch fits, and one more does not.
#[test]
fn the_largest_micro_batch_is_the_largest() {
    let folder = folder_with(&smol());
    let said = estimate(folder.path(), &["--memory", "24GiB", "--length", "512"]);
    let room = said["memories"][0]["bytes"].as_u64().unwrap();
    let largest = said["memories"][0]["largest"].as_array().unwrap();
    for (index, way) in largest.iter().enumerate() {
        let size = way["micro_batch"].as_u64().unwrap();
        assert!(size > 1, "{way}");
        let peak = |size: u64| {
            let said = estimate(
                folder.path(),
                &[
                    "--memory",
                    "24GiB",
                    "--length",
                    "512",
                    "--batch",
                    &size.to_string(),
                ],
            );
            said["micro_batch"]["ways"][index]["peak"].as_u64().unwrap()
        };
        assert!(peak(size) <= room && peak(size + 1) > room, "{way}");
    }
}

/// Optimizers and moments, against what an optimizer of this crate says of the same shapes.
#[test]
fn what_an_optimizer_holds_is_what_the_library_holds() -> candle_headroom::Result<()> {
    use candle_core::Var;
    use candle_headroom::optim::{Commit, Lion, Moments};
    use candle_headroom::{AdamW, Sgd};
    let shapes: [&[usize]; 5] = [&[300, 70], &[70], &[4096], &[4095], &[129, 128]];
    let vars: candle_core::Result<Vec<_>> = shapes
        .iter()
        .map(|shape| Var::ones(*shape, DType::F32, &Device::Cpu))
        .collect();
    let vars = vars?;
    let folder = tempfile::tempdir().unwrap();
    let tensors: HashMap<_, _> = vars
        .iter()
        .enumerate()
        .map(|(index, var)| (index.to_string(), var.as_detached_tensor()))
        .collect();
    candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors"))?;
    let builder = || AdamW::builder(vars.clone());
    let ours: [(&[&str], Option<u64>); 5] = [
        (
            &["--optimizer", "adamw"],
            builder().build()?.state_bytes().into(),
        ),
        (
            &["--moments", "bf16"],
            builder().moments(DType::BF16).build()?.state_bytes().into(),
        ),
        (
            &["--moments", "8bit"],
            builder()
                .moments(Moments::EightBit)
                .build()?
                .state_bytes()
                .into(),
        ),
        (
            &["--optimizer", "lion"],
            Lion::builder(vars.clone()).build()?.state_bytes().into(),
        ),
        (
            &["--optimizer", "sgd"],
            Commit::state_bytes(&Sgd::builder(vars.clone()).build()?),
        ),
    ];
    for (arguments, state) in ours {
        let said = estimate(folder.path(), &[arguments, &["--memory", "1GiB"]].concat());
        let elements: usize = vars.iter().map(|var| var.elem_count()).sum();
        let held = said["held_bytes"].as_u64().unwrap();
        assert_eq!(
            held,
            8 * elements as u64 + state.unwrap(),
            "{arguments:?}: {said}"
        );
    }
    let halves = vars
        .iter()
        .map(|var| Var::from_tensor(&var.to_dtype(DType::BF16)?));
    let halves = halves.collect::<candle_core::Result<Vec<_>>>()?;
    let state = AdamW::builder(halves)
        .master_weights()
        .build()?
        .state_bytes();
    let arguments = ["--dtype", "bf16", "--master-weights", "--memory", "1GiB"];
    let said = estimate(folder.path(), &arguments);
    let elements: usize = vars.iter().map(|var| var.elem_count()).sum();
    assert_eq!(said["held_bytes"], 6 * elements as u64 + state, "{said}");
    Ok(())
}

/// The shards of a model are named by an index, and only their headers are read.
#[test]
fn shards_without_a_config_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut weight_map = serde_json::Map::new();
    for (shard, dtype) in [("a", DType::F16), ("b", DType::F16)] {
        let file = format!("model-{shard}.safetensors");
        let tensor = Tensor::zeros((100, 10), dtype, &Device::Cpu).unwrap();
        let tensors = HashMap::from([(format!("{shard}.weight"), tensor)]);
        candle_core::safetensors::save(&tensors, folder.path().join(&file)).unwrap();
        weight_map.insert(format!("{shard}.weight"), file.into());
    }
    let index = folder.path().join("model.safetensors.index.json");
    fs::write(
        &index,
        json!({ "metadata": {}, "weight_map": weight_map }).to_string(),
    )
    .unwrap();
    let said = estimate(folder.path(), &["--memory", "1GiB"]);
    assert_eq!(
        (&said["parameters"], &said["dtype"]),
        (&json!(2000), &json!("f16"))
    );
    assert_eq!(
        said["micro_batch"],
        Value::Null,
        "activations are not known"
    );
    let text = run(&["estimate", path(folder.path()), "--memory", "1GiB"]).text;
    assert!(
        text.contains("note: without config.json, activations are not known"),
        "{text}"
    );
    refuses(
        &["estimate", path(folder.path()), "--lora-rank", "8"],
        "needs the folder's config.json",
    );
    fs::remove_file(folder.path().join("model-b.safetensors")).unwrap();
    refuses(&["estimate", path(folder.path())], "model-b.safetensors");
}

#[test]
fn what_is_not_trained_is_left_out_with_a_note() {
    let mut config = smol();
    config["dtype"] = "float16".into(); // beside its older name
    let folder = folder_with(&config);
    let parameters = estimate(folder.path(), &["--memory", "80GiB"])["parameters"].clone();
    let header = r#"{"a":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"I32","shape":[2],"data_offsets":[8,16]}}"#;
    let whole = [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        &[0; 16],
    ]
    .concat();
    fs::write(folder.path().join("model.safetensors"), whole).unwrap();
    let said = estimate(folder.path(), &["--memory", "80GiB"]);
    assert_eq!(
        (&said["dtype"], &said["parameters"]),
        (&json!("f16"), &parameters)
    );
    let notes = said["notes"].to_string();
    assert!(
        notes.contains("2 tensors are not f32, bf16, f16 or f64"),
        "{notes}"
    );
}

/// 2 TB, of which only the header is there; the file system does not store the rest.
#[cfg(target_os = "linux")]
#[test]
fn the_weights_themselves_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let header =
        r#"{"w":{"dtype":"F32","shape":[1000000,500000],"data_offsets":[0,2000000000000]}}"#;
    let whole = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    let file = folder.path().join("model.safetensors");
    fs::write(&file, &whole).unwrap();
    let longer = fs::File::options().write(true).open(&file).unwrap();
    if longer
        .set_len(whole.len() as u64 + 2_000_000_000_000)
        .is_err()
    {
        eprintln!("skipped: the file system has no files of this size");
        return;
    }
    let said = estimate(folder.path(), &["--memory", "80GiB"]);
    assert_eq!(said["parameters"], 500_000_000_000u64);
    assert_eq!(said["held_bytes"], 8_000_000_000_000u64);
    let Answer { status, text, .. } = run(&["estimate", path(folder.path()), "--memory", "80GiB"]);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("  what is held does not fit\n"), "{text}");
}
