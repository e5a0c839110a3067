//! The model of the program `finetune`: its files, its families and its adapters, beside transformers and PEFT.
//!
//! `crates/finetune/tests/data` has small random models of each family and what torch 2.15.0, transformers 5.23.0 and peft 0.21.2
//! computed with them, made by `scripts/compare-with-transformers.sh --golden crates/finetune/tests/data`.

mod adapters;
#[path = "../../benches/transformers/compared.rs"]
#[allow(dead_code, reason = "the benchmark saves")]
mod compared;
mod families;
mod folders;
mod generated;
mod options;
mod spans;
mod texts;

use std::path::{Path, PathBuf};
use std::{fs, io};

use candle_core::{Device, Tensor};

const FAMILIES: [&str; 8] = [
    "llama-2",
    "llama-3",
    "llama-linear-biases",
    "mistral",
    "qwen2",
    "qwen2-window",
    "qwen3",
    "smollm",
];

fn case(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("tests/data").join(name)
}

/// A copy of a case that a test may spoil.
fn copy(name: &str) -> tempfile::TempDir {
    fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
        for entry in fs::read_dir(from)? {
            let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry?.file_name()));
            if from.is_dir() {
                fs::create_dir(&to)?;
                copy_all(&from, &to)?;
            } else {
                fs::copy(from, to)?;
            }
        }
        Ok(())
    }
    let folder = tempfile::tempdir().unwrap();
    copy_all(&case(name), folder.path()).unwrap();
    folder
}

/// Changes an entry of a JSON file; `null` takes it out.
fn edit(file: &Path, name: &str, value: serde_json::Value) {
    let text = fs::read_to_string(file).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    match value {
        serde_json::Value::Null => drop(json.as_object_mut().unwrap().remove(name)),
        value => json[name] = value,
    }
    fs::write(file, json.to_string()).unwrap();
}

/// (1, time)
fn text(tokens: &[u32]) -> Tensor {
    let text = Tensor::new(tokens, &Device::Cpu).unwrap();
    text.unsqueeze(0).unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    let all = tensor.flatten_all().unwrap();
    let all = all.to_dtype(candle_core::DType::F32).unwrap();
    all.to_vec1().unwrap()
}
