//! The models of `tests/data`, and numbers of tensors.

use std::path::{Path, PathBuf};
use std::{fs, io};

use candle_core::{Device, Tensor};

pub fn case(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("tests/data").join(name)
}

/// A copy of a case that a test may spoil.
pub fn copy(name: &str) -> tempfile::TempDir {
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
pub fn edit(file: &Path, name: &str, value: serde_json::Value) {
    let text = fs::read_to_string(file).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    match value {
        serde_json::Value::Null => drop(json.as_object_mut().unwrap().remove(name)),
        value => json[name] = value,
    }
    fs::write(file, json.to_string()).unwrap();
}

/// (1, time)
pub fn text(tokens: &[u32]) -> Tensor {
    let text = Tensor::new(tokens, &Device::Cpu).unwrap();
    text.unsqueeze(0).unwrap()
}

pub fn numbers(tensor: &Tensor) -> Vec<f32> {
    let all = tensor.flatten_all().unwrap();
    let all = all.to_dtype(candle_core::DType::F32).unwrap();
    all.to_vec1().unwrap()
}
