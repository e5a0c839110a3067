use std::collections::{BTreeMap, BTreeSet};

use candle_core::Tensor;
use serde_json::json;

use super::load::listed_twice;
use crate::elements::size;
use crate::error::Result;
use crate::optim::{file_header, place_in_file};

/// A safetensors file that is to be written.
#[derive(Debug)]
pub(super) struct TensorFile {
    pub(super) name: String,
    pub(super) header: Vec<u8>,
    pub(super) tensors: Vec<Tensor>,
}

/// Lays tensors out in `NAME.safetensors`, or if they take more than `most` bytes in several files, and returns for those the
/// content of `NAME.safetensors.index.json`, as Hugging Face writes both. The headers have a text.
pub(super) fn tensor_files(
    name: &str,
    mut tensors: Vec<(String, Tensor)>,
    most: u64,
    (key, text): (&str, String),
) -> Result<(Vec<TensorFile>, Option<Vec<u8>>)> {
    let mut names = BTreeSet::new();
    if let Some((twice, _)) = tensors
        .iter()
        .find(|(name, _)| !names.insert(name.as_str()))
    {
        return Err(listed_twice(twice));
    }
    tensors.sort_by_key(|(_, tensor)| place_in_file(tensor));
    let total: u64 = tensors.iter().map(|(_, tensor)| size(tensor) as u64).sum();
    let shards = split(tensors, most);
    let count = shards.len();
    let file_name = |index: usize| match count {
        1 => format!("{name}.safetensors"),
        _ => format!("{name}-{:05}-of-{count:05}.safetensors", index + 1),
    };
    let metadata = BTreeMap::from([(key.to_owned(), text)]);
    let mut files = Vec::with_capacity(count);
    let mut places = BTreeMap::new();
    for (index, shard) in shards.into_iter().enumerate() {
        let named = shard.iter().map(|(name, tensor)| (name.as_str(), tensor));
        let header = file_header(named, &metadata)?;
        if count > 1 {
            places.extend(
                shard
                    .iter()
                    .map(|(name, _)| (name.clone(), file_name(index))),
            );
        }
        files.push(TensorFile {
            name: file_name(index),
            header,
            tensors: shard.into_iter().map(|(_, tensor)| tensor).collect(),
        });
    }
    let index = json!({"metadata": {"total_size": total}, "weight_map": places});
    let index = (count > 1).then(|| serde_json::to_vec_pretty(&index));
    Ok((files, index.transpose().map_err(candle_core::Error::wrap)?))
}

/// At least one shard; a tensor is never split.
fn split(tensors: Vec<(String, Tensor)>, most: u64) -> Vec<Vec<(String, Tensor)>> {
    let (mut shards, mut last, mut bytes) = (Vec::new(), Vec::new(), 0u64);
    for (name, tensor) in tensors {
        let more = size(&tensor) as u64;
        if !last.is_empty() && bytes.saturating_add(more) > most {
            shards.push(std::mem::take(&mut last));
            bytes = 0;
        }
        bytes += more;
        last.push((name, tensor));
    }
    shards.push(last);
    shards
}
