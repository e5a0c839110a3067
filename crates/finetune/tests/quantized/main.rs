//! Bases in few bits: GGUF files beside PEFT, weights that are quantized when they are read, and what is refused.

#[path = "../support/cases.rs"]
mod cases;
#[path = "../../benches/transformers/compared.rs"]
#[allow(dead_code, reason = "the benchmark compares more")]
mod compared;
mod losses;

use std::fs::{self, File};
use std::path::Path;

use candle_core::quantized::gguf_file::{self, Content, Value};
use candle_core::{DType, Device, Tensor};
use candle_headroom::nn::quantized::{FrozenWeight, GgmlDType, Nf4, QTensor};
use candle_headroom::nn::{VarBuilder, VarMap};
use candle_headroom::{DeviceMemory, TrackingAllocator};
use rand::SeedableRng;
use rand::rngs::StdRng;

use cases::{case, copy, edit, numbers, text};
use compared::{Expected, adapted_gguf, named};
use headroom_finetune::model::{Base, Config, Decoder, Quantization, initialize, save_model};

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

const KINDS: [&str; 6] = ["q8_0", "q6_k", "q5_k", "q4_k", "q4_0", "nf4"];

/// The file has q and k in Q8_0, v in F16, the perceptron in Q4_0; llama.cpp's order of rows is made by Python.
#[test]
fn adapters_on_gguf_files_agree_with_peft() {
    for name in ["llama-3", "llama-linear-biases", "qwen2", "qwen3"] {
        let folder = case(&format!("gguf-{name}"));
        let trained = adapted_gguf(&folder, &folder.join("adapter")).unwrap();
        let expected = Expected::read(&folder).unwrap();
        let (differences, _) = expected.compare("lora", &trained).unwrap();
        assert!(differences.logits < 1e-4, "{name}: {differences:?}");
        assert!(differences.gradients < 1e-4, "{name}: {differences:?}");
    }
}

fn refusal(folder: &Path) -> String {
    let (file, config) = (folder.join("model.gguf"), Config::read(folder).unwrap());
    let opened = Base::gguf(&file, &config, DType::F32, &Device::Cpu);
    // candle's errors append a backtrace if RUST_BACKTRACE is set, which the program leaves out.
    let error = format!("{:#}", opened.err().expect("an error"));
    let error = error.lines().next().unwrap_or_default().to_owned();
    assert!(error.contains("model.gguf"), "{error}");
    error
}

/// Writes the file again with another option, and without a tensor.
fn rewrite(folder: &Path, option: Option<(&str, Value)>, without: Option<&str>) {
    let path = folder.join("model.gguf");
    let mut file = File::open(&path).unwrap();
    let content = Content::read(&mut file).unwrap();
    let mut metadata = content.metadata.clone();
    if let Some((name, value)) = option {
        metadata.insert(name.to_owned(), value);
    }
    let mut tensors = Vec::new();
    for name in content.tensor_infos.keys() {
        if Some(name.as_str()) != without {
            let tensor = content.tensor(&mut file, name, &Device::Cpu).unwrap();
            tensors.push((name.clone(), tensor));
        }
    }
    let metadata: Vec<_> = metadata
        .iter()
        .map(|(name, value)| (name.as_str(), value))
        .collect();
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor))
        .collect();
    gguf_file::write(&mut File::create(&path).unwrap(), &metadata, &tensors).unwrap();
}

#[test]
fn files_that_are_not_this_model_are_refused_by_name() {
    let text = |text: &str| Value::String(text.to_owned());
    for (option, without, expected) in [
        (
            Some(("general.architecture", text("gemma2"))),
            None,
            "`general.architecture` is `gemma2`, the model's config.json needs `llama`",
        ),
        (
            Some(("general.architecture", text("qwen3"))),
            None,
            "`general.architecture` is `qwen3`, the model's config.json needs `llama`",
        ),
        (
            Some(("llama.rope.freq_base", Value::F32(1e4))),
            None,
            "`llama.rope.freq_base` is 10000, the model's config.json has 500000",
        ),
        (
            None,
            Some("blk.0.attn_k.weight"),
            "`blk.0.attn_k.weight` (model.layers.0.self_attn.k_proj.weight) is missing",
        ),
    ] {
        let folder = copy("gguf-llama-3");
        rewrite(folder.path(), option, without);
        let error = refusal(folder.path());
        assert!(error.contains(expected), "{error}");
    }
    // A norm in few bits, which nobody makes.
    let folder = copy("gguf-llama-3");
    let path = folder.path().join("model.gguf");
    let mut file = File::open(&path).unwrap();
    let content = Content::read(&mut file).unwrap();
    let tensors = content.tensor_infos.keys().map(|name| {
        let tensor = content.tensor(&mut file, name, &Device::Cpu).unwrap();
        match name.as_str() {
            "output_norm.weight" => {
                let whole = tensor.dequantize(&Device::Cpu).unwrap();
                (name, QTensor::quantize(&whole, GgmlDType::Q8_0).unwrap())
            }
            _ => (name, tensor),
        }
    });
    let tensors: Vec<_> = tensors.collect();
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor))
        .collect();
    let metadata: Vec<_> = content
        .metadata
        .iter()
        .map(|(name, value)| (name.as_str(), value))
        .collect();
    gguf_file::write(&mut File::create(&path).unwrap(), &metadata, &tensors).unwrap();
    let error = refusal(folder.path());
    assert!(
        error.contains("`output_norm.weight` is a vector in Q8_0"),
        "{error}"
    );
    // The same file, written again, is read.
    let folder = copy("gguf-llama-3");
    rewrite(folder.path(), None, None);
    adapted_gguf(folder.path(), &folder.path().join("adapter")).unwrap();
    edit(&folder.path().join("config.json"), "hidden_size", 96.into());
    let error = refusal(folder.path());
    assert!(
        error.contains("`token_embd.weight` has shape [32, 64], the model needs [32, 96]"),
        "{error}"
    );
}

#[test]
fn files_that_are_not_whole_are_refused() {
    let folder = copy("gguf-llama-3");
    let path = folder.path().join("model.gguf");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 100]).unwrap();
    assert!(refusal(folder.path()).contains("it is not whole"));
    for len in [0, 3, 100] {
        fs::write(&path, &bytes[..len]).unwrap();
        refusal(folder.path());
    }
    // The name of a tensor, one dimension of 8 bytes with its count of 4, and the type.
    let name = b"output_norm.weight";
    let at = bytes.windows(name.len()).position(|window| window == name);
    let at = at.unwrap() + name.len() + 12;
    let mut bytes = bytes;
    assert_eq!(bytes[at..at + 4], [0; 4]);
    bytes[at] = 99;
    fs::write(&path, &bytes).unwrap();
    let error = refusal(folder.path());
    assert!(
        error.contains("Q2_K to Q6_K") && error.contains("99"),
        "{error}"
    );
}

/// A model with rows of several blocks of 256, drawn by a seed.
fn wide(folder: &Path, config: &Config) -> VarMap {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    Decoder::new(config, vb, None).unwrap();
    initialize(&vars, 0.05, &mut StdRng::seed_from_u64(1)).unwrap();
    save_model(folder, config, &vars).unwrap();
    vars
}

fn small() -> Config {
    Config {
        vocab_size: 256,
        hidden_size: 256,
        intermediate_size: 512,
        num_hidden_layers: 1,
        num_attention_heads: 8,
        num_key_value_heads: 4,
        ..Config::default()
    }
}

#[test]
fn quantized_weights_compute_what_their_dequantized_ones_do() {
    let (folder, config) = (tempfile::tempdir().unwrap(), small());
    let vars = wide(folder.path(), &config);
    for name in KINDS {
        let kind: Quantization = name.parse().unwrap();
        let base = Base::quantized(folder.path(), &config, kind, DType::F32, &Device::Cpu);
        let decoder = Decoder::new(&config, base.unwrap(), None).unwrap();
        let found = numbers(&decoder.forward(&text(&[3, 1, 4, 1, 5])).unwrap());
        let tensors = named(&vars).into_iter().map(|(name, var)| {
            let weight = var.as_tensor().clone();
            let quantized: FrozenWeight = match kind {
                _ if !name.contains("proj") => return (name, weight),
                Quantization::Ggml(kind) => QTensor::quantize(&weight, kind).unwrap().into(),
                Quantization::Nf4 => Nf4::quantize(&weight, &Device::Cpu).unwrap().into(),
            };
            (name, quantized.dequantize().unwrap())
        });
        let vb = VarBuilder::from_tensors(tensors.collect(), DType::F32, &Device::Cpu);
        let expected = Decoder::new(&config, vb, None).unwrap();
        let expected = numbers(&expected.forward(&text(&[3, 1, 4, 1, 5])).unwrap());
        let largest = expected.iter().fold(0f32, |a, b| a.max(b.abs()));
        for (found, expected) in found.iter().zip(&expected) {
            assert!(
                (found - expected).abs() < 1e-5 * largest,
                "{name}: {found} {expected}"
            );
        }
    }
}

#[test]
fn rows_that_are_no_blocks_are_refused_with_a_remedy() {
    let config = Config::read(&case("llama-2")).unwrap();
    let kind = Quantization::Ggml(GgmlDType::Q4K);
    let refused = Base::quantized(&case("llama-2"), &config, kind, DType::F32, &Device::Cpu);
    let error = refused.err().expect("an error").to_string();
    assert!(
        error.contains("self_attn.q_proj has 8 inputs, and Q4K has blocks of 256"),
        "{error}"
    );
}

/// Beside the result, no more than the largest tensor and a piece are in memory.
#[test]
fn loading_takes_one_tensor_beside_the_result() {
    let (folder, mut config) = (tempfile::tempdir().unwrap(), small());
    config.hidden_size = 2048;
    config.num_attention_heads = 64;
    config.intermediate_size = 12288;
    config.num_hidden_layers = 1;
    let tensors = config.tensors().into_iter().map(|(name, shape)| {
        (
            name,
            Tensor::full(0.5f32, shape, &Device::Cpu)
                .unwrap()
                .to_dtype(DType::BF16)
                .unwrap(),
        )
    });
    config.save(folder.path(), Some(DType::BF16)).unwrap();
    let file = folder.path().join("model.safetensors");
    candle_core::safetensors::save(&tensors.collect(), file).unwrap();
    let memory = DeviceMemory::host().open().unwrap();
    let largest = 2048 * 12288 * 2;
    let mut worst = 0.;
    for name in ["q8_0", "q4_k", "nf4"] {
        let kind = name.parse().unwrap();
        let scope = memory.peak_scope();
        let before = memory.in_use().unwrap();
        let base = Base::quantized(folder.path(), &config, kind, DType::BF16, &Device::Cpu);
        let decoder = Decoder::new(&config, base.unwrap(), None).unwrap();
        let (peak, result) = (scope.peak().unwrap(), memory.in_use().unwrap() - before);
        drop(decoder);
        let beside = peak.saturating_sub(before + result) as f64 - f64::from(largest);
        let mib = beside / f64::from(1 << 20);
        assert!(
            mib <= 64.,
            "{name}: {mib} MiB beside the result and the largest tensor"
        );
        worst = f64::max(worst, mib);
    }
    println!("figure: qlora/load_peak = {worst:.1} MiB above result and largest tensor");
}
