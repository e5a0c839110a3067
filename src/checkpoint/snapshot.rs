use std::collections::BTreeMap;
use std::ops::Range;

use candle_core::Tensor;
use rayon::prelude::*;

use super::document::{Document, STATE};
use super::files::NewFile;
use super::manifest::Fingerprint;
use super::partial::Partial;
use super::tensor_files::{TensorFile, tensor_files};
use crate::elements::{size, with_bytes};
use crate::error::{CheckpointError, Error, Result, invalid};
use crate::optim::StateDict;

/// One thread's share of a copy: long enough that sharing costs nothing.
const SHARE: usize = 4 << 20;

/// The content of a checkpoint between two updates.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) step: u64,
    pub(super) files: Vec<SavedFile>,
    /// Files of other ranks, and the folder that they are in.
    pub(super) others: BTreeMap<String, Fingerprint>,
    pub(super) partial: Option<Partial>,
    /// The model's tensors, if they were copied, in the order of its files; reused by the next snapshot.
    pub(super) buffer: Vec<u8>,
    /// The model was copied: the snapshot stays as it is while the model is trained further.
    pub(super) is_copy: bool,
}

/// Parts of an optimizer's state that are files of a checkpoint of which rank 0 has to write the rest.
#[derive(Debug)]
pub(super) struct Parts {
    /// The folder that the others' are in.
    pub(super) partial: Partial,
    pub(super) others: BTreeMap<String, Fingerprint>,
    /// Rank 0's own, which is still to be written.
    pub(super) own: Vec<SavedFile>,
}

/// The state of a trainer, without the tensors of which there are parts.
pub(super) type State = (StateDict, Option<Parts>);

#[derive(Debug)]
pub(super) struct SavedFile {
    pub(super) name: String,
    header: Vec<u8>,
    content: Content,
}

/// What follows a file's header.
#[derive(Debug)]
enum Content {
    Tensors(Vec<Tensor>),
    Copied(Range<usize>),
}

impl Snapshot {
    /// Takes everything that a checkpoint holds. With a buffer, which has room for it, the model is copied; without one it is read when it
    /// is written. The optimizer's state is a copy already: its tensors, or `parts` of them.
    pub(super) fn take(
        model: Vec<(String, Tensor)>,
        (state, parts): State,
        mut document: Document,
        most: u64,
        buffer: Option<Vec<u8>>,
    ) -> Result<Self> {
        // Python's transformers refuses files without it.
        let format = || ("format", "pt".to_owned());
        let (model, model_index) = tensor_files("model", model, most, format())?;
        let (optimizer, optimizer_index, partial, others) = match parts {
            Some(parts) => (parts.own, None, Some(parts.partial), parts.others),
            None => {
                let tensors = state.tensors.into_iter().collect();
                let (files, index) = tensor_files("optimizer", tensors, most, format())?;
                let files = files.into_iter().map(SavedFile::of_tensors).collect();
                (files, index, None, BTreeMap::new())
            }
        };
        document.training = state.metadata;
        let json = serde_json::to_vec_pretty(&document).map_err(candle_core::Error::wrap)?;

        let (mut files, is_copy) = (Vec::new(), buffer.is_some());
        let buffer = match buffer {
            Some(buffer) => copy(model, buffer, &mut files)?,
            None => {
                files.extend(model.into_iter().map(SavedFile::of_tensors));
                Vec::new()
            }
        };
        files.extend(optimizer);
        let indices = [("model", model_index), ("optimizer", optimizer_index)];
        for (name, index) in indices {
            let name = format!("{name}.safetensors.index.json");
            files.extend(index.map(|index| SavedFile::of_bytes(&name, index)));
        }
        files.push(SavedFile::of_bytes(STATE, json));
        Ok(Self {
            step: document.step,
            files,
            others,
            partial,
            buffer,
            is_copy,
        })
    }

    /// What remains of a run whose device is lost.
    pub(super) fn rescue(document: &Document) -> Result<Self> {
        let json = serde_json::to_vec_pretty(document).map_err(candle_core::Error::wrap)?;
        Ok(Self {
            step: document.step,
            files: vec![SavedFile::of_bytes(STATE, json)],
            others: BTreeMap::new(),
            partial: None,
            buffer: Vec::new(),
            is_copy: true,
        })
    }
}

impl SavedFile {
    pub(super) fn of_tensors(file: TensorFile) -> Self {
        Self {
            name: file.name,
            header: file.header,
            content: Content::Tensors(file.tensors),
        }
    }

    pub(super) fn of_bytes(name: &str, bytes: Vec<u8>) -> Self {
        Self {
            name: name.to_owned(),
            header: bytes,
            content: Content::Tensors(Vec::new()),
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
        match &self.content {
            Content::Tensors(tensors) => {
                for tensor in tensors {
                    with_bytes(tensor, &mut f)??;
                }
            }
            Content::Copied(range) => f(buffer.get(range.clone()).unwrap_or_default())?,
        }
        Ok(())
    }
}

/// Copies tensors, one after the other; each in parallel. Those of a device arrive through candle, in this thread.
fn copy(
    model: Vec<TensorFile>,
    mut buffer: Vec<u8>,
    files: &mut Vec<SavedFile>,
) -> Result<Vec<u8>> {
    let bytes = |file: &TensorFile| file.tensors.iter().map(size).sum::<usize>();
    let total: usize = model.iter().map(bytes).sum();
    buffer.resize(total, 0);
    let (mut rest, mut end) = (&mut buffer[..], 0);
    for file in model {
        let start = end;
        for tensor in &file.tensors {
            let (to, after) = rest
                .split_at_mut_checked(size(tensor))
                .ok_or_else(|| misfit(&file.name))?;
            with_bytes(tensor, |from| {
                if from.len() != to.len() {
                    return Err(misfit(&file.name));
                }
                let shares = to.par_chunks_mut(SHARE).zip(from.par_chunks(SHARE));
                shares.for_each(|(to, from)| to.copy_from_slice(from));
                Ok(())
            })??;
            end += size(tensor);
            rest = after;
        }
        files.push(SavedFile {
            name: file.name,
            header: file.header,
            content: Content::Copied(start..end),
        });
    }
    Ok(buffer)
}

fn misfit(file: &str) -> Error {
    invalid!(Checkpoint, "a tensor of {file} changed while it was copied")
}
