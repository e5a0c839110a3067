//! What a checkpoint holds, taken between two updates.
//!
//! The model is copied into one buffer where there is room, so that a thread can write while training goes on; otherwise its tensors are read when
//! they are written, and training waits. The optimizer's state is a copy in any case. A model or a state above a size becomes several files with an
//! index.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::ops::Range;

use candle_core::Tensor;
use rayon::prelude::*;
use serde_json::json;

use super::document::{Document, Fingerprint, STATE};
use super::files::NewFile;
use super::folder::Partial;
use super::load::listed_twice;
use crate::elements::{size, with_bytes};
use crate::error::{CheckpointError, Error, Result, invalid};
use crate::optim::{StateDict, file_header, place_in_file};

/// The beginning of the names of files with one rank's part of the optimizer's state.
pub(super) const PART: &str = "optimizer-rank-";
/// One thread's share of a copy: long enough that sharing costs nothing.
const SHARE: usize = 4 << 20;

/// The content of a checkpoint between two updates.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) step: u64,
    pub(super) files: Vec<SavedFile>,
    pub(super) parts: Parts,
    /// The model's tensors, if they were copied, in the order of its files; reused by the next snapshot.
    pub(super) buffer: Vec<u8>,
    /// The model was copied: the snapshot stays as it is while the model is trained further.
    pub(super) is_copy: bool,
}

/// Parts of an optimizer's state, if each rank writes one: files of a checkpoint of which rank 0 has to write the rest.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// The folder that the others' are in.
    pub(super) partial: Option<Partial>,
    pub(super) others: BTreeMap<String, Fingerprint>,
    /// Rank 0's own, which is still to be written.
    pub(super) own: Vec<SavedFile>,
}

/// The state of a trainer, without the tensors of which there are parts.
pub(super) type State = (StateDict, Parts);

#[derive(Debug)]
pub(super) struct SavedFile {
    pub(super) name: String,
    header: Vec<u8>,
    /// Those that follow the header, if they were not copied.
    tensors: Vec<Tensor>,
    /// The place of their copies in the snapshot's buffer.
    copied: Range<usize>,
}

impl Snapshot {
    /// Takes everything that a checkpoint holds. With a buffer, which has room for it, the model is copied; without one it is read when it
    /// is written. The optimizer's state is a copy already: its tensors, or `parts` of them.
    pub(super) fn take(
        model: Vec<(String, Tensor)>,
        (state, mut parts): State,
        mut document: Document,
        most: u64,
        buffer: Option<Vec<u8>>,
    ) -> Result<Self> {
        // Python's transformers refuses files without it.
        let format = || ("format", "pt".to_owned());
        let (mut files, model_index) = tensor_files("model", model, most, format())?;
        let (optimizer, optimizer_index) = match parts.partial.is_some() {
            true => (mem::take(&mut parts.own), None),
            false => {
                let tensors = state.tensors.into_iter().collect();
                tensor_files("optimizer", tensors, most, format())?
            }
        };
        document.training = state.metadata;
        let json = serde_json::to_vec_pretty(&document).map_err(candle_core::Error::wrap)?;

        let is_copy = buffer.is_some();
        let buffer = match buffer {
            Some(buffer) => copy(&mut files, buffer)?,
            None => Vec::new(),
        };
        files.extend(optimizer);
        files.extend(model_index.into_iter().chain(optimizer_index));
        files.push(SavedFile::of_bytes(STATE, json));
        Ok(Self {
            step: document.step,
            files,
            parts,
            buffer,
            is_copy,
        })
    }
}

impl SavedFile {
    pub(super) fn of_bytes(name: &str, bytes: Vec<u8>) -> Self {
        Self {
            name: name.to_owned(),
            header: bytes,
            tensors: Vec::new(),
            copied: 0..0,
        }
    }

    pub(super) fn write(&self, to: &mut NewFile, buffer: &[u8]) -> Result<()> {
        self.each(buffer, |bytes| to.write(bytes))
    }

    /// Size and checksum of the file that would be written.
    pub(super) fn fingerprint(&self, buffer: &[u8]) -> Result<Fingerprint> {
        let (mut hasher, mut size) = (crc32fast::Hasher::new(), 0);
        self.each(buffer, |bytes| {
            hasher.update(bytes);
            size += bytes.len() as u64;
            Ok(())
        })?;
        Ok(Fingerprint::new((size, hasher.finalize())))
    }

    /// Calls `f` with the file's bytes, piece by piece.
    fn each(
        &self,
        buffer: &[u8],
        mut f: impl FnMut(&[u8]) -> Result<(), CheckpointError>,
    ) -> Result<()> {
        f(&self.header)?;
        for tensor in &self.tensors {
            with_bytes(tensor, &mut f)??;
        }
        let copied = buffer.get(self.copied.clone());
        Ok(f(copied.unwrap_or_default())?)
    }
}

/// Copies the files' tensors, one after the other; each in parallel. Those of a device arrive through candle, in this thread.
fn copy(files: &mut [SavedFile], mut buffer: Vec<u8>) -> Result<Vec<u8>> {
    let bytes = |file: &SavedFile| file.tensors.iter().map(size).sum::<usize>();
    buffer.resize(files.iter().map(bytes).sum(), 0);
    let (mut rest, mut end) = (&mut buffer[..], 0);
    for file in files {
        let start = end;
        for tensor in mem::take(&mut file.tensors) {
            let (to, after) = rest
                .split_at_mut_checked(size(&tensor))
                .ok_or_else(|| misfit(&file.name))?;
            with_bytes(&tensor, |from| {
                if from.len() != to.len() {
                    return Err(misfit(&file.name));
                }
                let shares = to.par_chunks_mut(SHARE).zip(from.par_chunks(SHARE));
                shares.for_each(|(to, from)| to.copy_from_slice(from));
                Ok(())
            })??;
            end += size(&tensor);
            rest = after;
        }
        file.copied = start..end;
    }
    Ok(buffer)
}

fn misfit(file: &str) -> Error {
    invalid!(Checkpoint, "a tensor of {file} changed while it was copied")
}

/// Lays tensors out in `NAME.safetensors`, or if they take more than `most` bytes in several files, and returns for those also
/// `NAME.safetensors.index.json`, as Hugging Face writes both. The headers have a text.
pub(super) fn tensor_files(
    name: &str,
    mut tensors: Vec<(String, Tensor)>,
    most: u64,
    (key, text): (&str, String),
) -> Result<(Vec<SavedFile>, Option<SavedFile>)> {
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
        let (names, tensors): (Vec<_>, _) = shard.into_iter().unzip();
        places.extend(names.into_iter().map(|name| (name, file_name(index))));
        files.push(SavedFile {
            name: file_name(index),
            header,
            tensors,
            copied: 0..0,
        });
    }
    let index = (count > 1).then(|| {
        let index = json!({"metadata": {"total_size": total}, "weight_map": places});
        let index = serde_json::to_vec_pretty(&index)?;
        let name = format!("{name}.safetensors.index.json");
        Ok(SavedFile::of_bytes(&name, index))
    });
    let index: serde_json::Result<_> = index.transpose();
    Ok((files, index.map_err(candle_core::Error::wrap)?))
}

/// At least one shard; a tensor is never split.
fn split(tensors: Vec<(String, Tensor)>, most: u64) -> Vec<Vec<(String, Tensor)>> {
    let (mut shards, mut last, mut bytes) = (Vec::new(), Vec::new(), 0u64);
    for (name, tensor) in tensors {
        let more = size(&tensor) as u64;
        if !last.is_empty() && bytes.saturating_add(more) > most {
            shards.push(mem::take(&mut last));
            bytes = 0;
        }
        bytes += more;
        last.push((name, tensor));
    }
    shards.push(last);
    shards
}
