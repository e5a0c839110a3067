use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use safetensors::Dtype;

use crate::elements;
use crate::error::{CheckpointError, Result};
use crate::fixed_file::{FixedFile, StoredTensor};
use crate::testing::{FileOperation, inject_file};

/// The tensors of one or more safetensors files, by name.
#[derive(Debug)]
pub(super) struct Tensors<'a>(BTreeMap<String, Saved<'a>>);

/// A tensor in a file.
#[derive(Debug)]
pub(super) struct Saved<'a> {
    file: &'a FixedFile,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// Its bytes.
    range: Range<u64>,
}

impl Saved<'_> {
    /// Reads it into memory.
    pub(super) fn load(&self, device: &Device) -> Result<Tensor> {
        let dtype = DType::try_from(self.dtype).map_err(candle_core::Error::wrap)?;
        elements::from_bytes(dtype, &self.shape, device, |bytes| {
            let read = inject_file(FileOperation::Read, self.file.path());
            let read = read.and_then(|()| self.file.read_at(bytes, self.range.start));
            let read = read.and_then(|()| self.file.check());
            Ok(read.map_err(CheckpointError::file("read", self.file.path()))?)
        })
    }
}

impl<'a> Tensors<'a> {
    /// Reads the headers of files of the checkpoint or model at `path`.
    pub(super) fn read(
        path: &Path,
        files: impl Iterator<Item = (&'a str, &'a FixedFile)>,
    ) -> Result<Self, CheckpointError> {
        let mut all = BTreeMap::new();
        for (name, file) in files {
            let damaged =
                |problem: String| CheckpointError::damaged(path, format!("{name}: {problem}"));
            let stored = file.tensors().map_err(|error| match error.kind() {
                ErrorKind::InvalidData => damaged(error.to_string()),
                _ => CheckpointError::file("read", file.path())(error),
            })?;
            for (tensor, stored) in stored {
                let StoredTensor {
                    dtype,
                    shape,
                    range,
                } = stored;
                let saved = Saved {
                    file,
                    dtype,
                    shape,
                    range,
                };
                if all.insert(tensor.clone(), saved).is_some() {
                    return Err(damaged(format!("tensor `{tensor}` is in two files")));
                }
            }
        }
        Ok(Self(all))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Saved<'a>)> {
        self.0.iter().map(|(name, saved)| (name.as_str(), saved))
    }

    pub(super) fn bytes(&self) -> u64 {
        let ranges = self.0.values().map(|saved| &saved.range);
        ranges.map(|range| range.end - range.start).sum()
    }

    /// Gives each tensor the name that `rename` returns for it. The error is a name that two would have.
    pub(super) fn renamed(self, rename: impl Fn(&str) -> String) -> Result<Self, String> {
        let mut all = BTreeMap::new();
        for (name, saved) in self.0 {
            let new = rename(&name);
            if all.insert(new.clone(), saved).is_some() {
                return Err(new);
            }
        }
        Ok(Self(all))
    }

    pub(super) fn get(&self, name: &str) -> Option<&Saved<'a>> {
        self.0.get(name)
    }
}
