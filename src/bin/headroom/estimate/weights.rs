//! What the safetensors files of a folder hold, from their headers alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use candle_core::DType;
use safetensors::tensor::Metadata;
use serde::Deserialize;

use super::super::output::{self, Result};

/// The longest header that the format allows, in bytes.
const LONGEST: u64 = 100_000_000;

/// The float tensors of all files.
#[derive(Debug)]
pub struct Weights {
    pub shapes: Vec<Vec<u64>>,
    /// The type in which most elements are trained: f32, bf16 or f16.
    pub dtype: Option<DType>,
    /// Tensors left out, because they are no float tensors: those of quantized weights, for example.
    pub left_out: usize,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Weights {
    /// `None` if the folder has no such file.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let files = files(folder)?;
        if files.is_empty() {
            return Ok(None);
        }
        let (mut shapes, mut of_types) = (Vec::new(), Vec::<(DType, u64)>::new());
        let mut left_out = 0;
        for file in files {
            for (dtype, shape) in header(&file)? {
                let Some(dtype) = dtype else {
                    left_out += 1;
                    continue;
                };
                let elements = elements(&shape);
                match of_types.iter_mut().find(|(known, _)| *known == dtype) {
                    Some((_, count)) => *count = count.saturating_add(elements),
                    None => of_types.push((dtype, elements)),
                }
                shapes.push(shape);
            }
        }
        let most = of_types.into_iter().max_by_key(|(_, count)| *count);
        Ok(Some(Self {
            shapes,
            dtype: most.map(|(dtype, _)| dtype),
            left_out,
        }))
    }
}

/// The number of elements of a shape.
pub fn elements(shape: &[u64]) -> u64 {
    shape
        .iter()
        .fold(1, |product, size| product.saturating_mul(*size))
}

/// The shards that an index names, or `model.safetensors`, or whatever there is.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let path = folder.join("model.safetensors.index.json");
    if path.try_exists()? {
        let text = output::read(&path, LONGEST)?;
        let invalid = |error| format!("cannot read {}: {error}", path.display());
        let index: Index = serde_json::from_slice(&text).map_err(invalid)?;
        let names: BTreeSet<_> = index.weight_map.values().collect();
        if names.is_empty() {
            return Err(format!("{} names no file", path.display()).into());
        }
        return Ok(names.into_iter().map(|name| folder.join(name)).collect());
    }
    let single = folder.join("model.safetensors");
    if single.try_exists()? {
        return Ok(vec![single]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|ending| ending == "safetensors")
        {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Shapes of a file's tensors, and the type in which their like is trained: none for integers and other quantized numbers.
fn header(path: &Path) -> Result<Vec<(Option<DType>, Vec<u64>)>> {
    let shown = path.display();
    let wrong = |reason: &dyn std::fmt::Display| format!("cannot read {shown}: {reason}");
    let there = fs::metadata(path).map_err(|error| wrong(&error))?;
    if !there.is_file() {
        return Err(wrong(&"not a regular file").into());
    }
    let mut file = File::open(path).map_err(|error| wrong(&error))?;
    let mut length = [0; 8];
    file.read_exact(&mut length)
        .map_err(|error| wrong(&error))?;
    let longest = LONGEST.min(there.len().saturating_sub(8));
    let header = u64::from_le_bytes(length);
    if header > longest {
        return Err(wrong(&"not a safetensors file, or not whole").into());
    }
    let mut bytes = Vec::new();
    let read = file.take(header).read_to_end(&mut bytes);
    read.map_err(|error| wrong(&error))?;
    let metadata = serde_json::from_slice(&bytes);
    let metadata: Metadata = metadata.map_err(|error| wrong(&error))?;
    let end = metadata
        .tensors()
        .values()
        .map(|tensor| tensor.data_offsets.1)
        .max();
    if there.len() - 8 - header < end.unwrap_or(0) as u64 {
        return Err(wrong(&"its end is missing").into());
    }
    let tensors = metadata.tensors().into_values().map(|tensor| {
        let dtype = match tensor.dtype {
            safetensors::Dtype::F64 | safetensors::Dtype::F32 => Some(DType::F32),
            safetensors::Dtype::BF16 => Some(DType::BF16),
            safetensors::Dtype::F16 => Some(DType::F16),
            _ => None,
        };
        let shape = tensor.shape.iter().map(|size| *size as u64);
        (dtype, shape.collect())
    });
    Ok(tensors.collect())
}
