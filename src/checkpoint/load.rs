//! From files into parameters: everything is compared before the first one changes, and after an error all get back what they had, where that is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;

use bytesize::ByteSize;
use candle_core::{DType, Device, Tensor, Var};

use crate::batch::Measured;
use crate::elements;
use crate::error::{Cause, CheckpointError, Error, Phase, Remedy, Result, invalid};
use crate::fixed_file::{FixedFile, StoredTensor};
use crate::memory::DeviceMemory;
use crate::names::Patterns;
use crate::optim::Parameter;
use crate::testing::{FileOperation, inject_file};

/// What may differ between a saved model and this one.
#[derive(Debug, Clone, Default)]
pub(super) struct Tolerance {
    pub(super) missing: Patterns,
    pub(super) unexpected: Patterns,
}

/// Parameters and the saved values, which fit them.
type Fitting<'a> = Vec<(&'a Var, &'a Saved<'a>)>;

/// Compares a saved model with these parameters.
pub(super) fn fit<'a>(
    path: &Path,
    saved: &'a Tensors<'a>,
    parameters: &'a [Parameter],
    tolerance: &Tolerance,
) -> Result<Fitting<'a>> {
    let (mut fitting, mut missing, mut unfit) = (Vec::new(), Vec::new(), Vec::new());
    let mut names = BTreeSet::new();
    for Parameter { name, var, .. } in parameters {
        if !names.insert(name.as_str()) {
            return Err(listed_twice(name));
        }
        match saved.get(name) {
            Some(saved) => match difference(saved, var) {
                None => fitting.push((var, saved)),
                Some(difference) => unfit.push(format!("{name}: {difference}")),
            },
            None if tolerance.missing.has(name) => {}
            None => missing.push(name.clone()),
        }
    }
    let others = saved.keys().map(String::as_str);
    let others = others.filter(|name| !names.contains(name) && !tolerance.unexpected.has(name));
    let unexpected: Vec<_> = others.map(str::to_owned).collect();
    match missing.is_empty() && unexpected.is_empty() && unfit.is_empty() {
        true => Ok(fitting),
        false => Err(CheckpointError::Differs {
            path: path.to_owned(),
            missing,
            unexpected,
            unfit,
        }
        .into()),
    }
}

/// The error for a name of two parameters, of which a file can hold only one.
pub(super) fn listed_twice(name: &str) -> Error {
    invalid!(
        Checkpoint,
        "two parameters have the name `{name}`: give each its own"
    )
}

fn difference(saved: &Saved<'_>, var: &Var) -> Option<String> {
    let StoredTensor { dtype, shape, .. } = &saved.stored;
    if *shape != var.dims() || DType::try_from(*dtype).ok() != Some(var.dtype()) {
        return Some(format!(
            "{dtype:?} {shape:?} there, {:?} {:?} here",
            var.dtype(),
            var.dims()
        ));
    }
    (!var.is_contiguous()).then(|| "not contiguous here".to_owned())
}

/// Parameters that were replaced, and the values that they had.
#[derive(Default)]
pub(super) struct Replaced(Vec<(Var, Tensor)>);

impl Replaced {
    /// Sets the parameters. The host `keeps` a copy of the values that they had, or none.
    pub(super) fn set(&mut self, fitting: Fitting<'_>, keeps: bool) -> Result<()> {
        for (var, saved) in fitting {
            if keeps {
                let value = var.as_detached_tensor().to_device(&Device::Cpu)?;
                // On the CPU the two would share their memory.
                self.0.push((var.clone(), value.copy()?));
            }
            var.set(&saved.load(var.device())?)?;
        }
        Ok(())
    }

    /// Gives the parameters their values back, because loading failed.
    pub(super) fn restore(self) {
        for (var, value) in self.0 {
            let restored = value.to_device(var.device()).and_then(|old| var.set(&old));
            if let Err(error) = restored {
                tracing::error!(%error, "a parameter could not be restored after loading failed");
            }
        }
    }
}

/// Refuses to take memory that is not there. Where the machine does not say, it is tried.
pub(super) fn check_memory(path: &Path, bytes: u64) -> Result<()> {
    let memory = DeviceMemory::host().open()?;
    if memory.would_fit(bytes) != Some(false) {
        return Ok(());
    }
    let stats = memory.stats();
    let limited = stats.limit.zip(stats.in_use);
    let in_limit = limited.map(|(limit, in_use)| limit.saturating_sub(in_use));
    let available = in_limit.into_iter().chain(stats.free).min();
    let (needed, left) = (ByteSize(bytes), ByteSize(available.unwrap_or(0)));
    let advice = format!(
        "free memory, or raise the limit of `DeviceMemory::host()`: loading {} needs {needed}, and there are {left}",
        path.display()
    );
    let cause = in_limit.map_or(Cause::DeviceFull, |_| Cause::Limit);
    let measured = Measured::begin(Some(&memory));
    let mut exhausted = measured.foreseen(cause, Some(Phase::Load));
    exhausted.bytes.requested = Some(bytes);
    exhausted.remedies = vec![Remedy::new(advice, None)];
    Err(exhausted.into())
}

/// Tensors in memory, by name.
pub(super) type Named = BTreeMap<String, Tensor>;

/// The tensors of one or more safetensors files, by name.
pub(super) type Tensors<'a> = BTreeMap<String, Saved<'a>>;

/// A tensor in a file.
#[derive(Debug)]
pub(super) struct Saved<'a> {
    file: &'a FixedFile,
    stored: StoredTensor,
}

impl Saved<'_> {
    /// Reads it into memory.
    pub(super) fn load(&self, device: &Device) -> Result<Tensor> {
        let StoredTensor {
            dtype,
            shape,
            range,
        } = &self.stored;
        let dtype = DType::try_from(*dtype).map_err(candle_core::Error::wrap)?;
        elements::from_bytes(dtype, shape, device, |bytes| {
            let read = inject_file(FileOperation::Read, self.file.path());
            let read = read.and_then(|()| self.file.read_at(bytes, range.start));
            let read = read.and_then(|()| self.file.check());
            Ok(read.map_err(CheckpointError::file("read", self.file.path()))?)
        })
    }
}

/// Reads the headers of files of the checkpoint or model at `path`.
pub(super) fn read_headers<'a>(
    path: &Path,
    files: impl Iterator<Item = (&'a str, &'a FixedFile)>,
) -> Result<Tensors<'a>, CheckpointError> {
    let mut all = BTreeMap::new();
    for (name, file) in files {
        let damaged =
            |problem: String| CheckpointError::damaged(path, format!("{name}: {problem}"));
        let stored = file.tensors().map_err(|error| match error.kind() {
            ErrorKind::InvalidData => damaged(error.to_string()),
            _ => CheckpointError::file("read", file.path())(error),
        })?;
        for (tensor, stored) in stored {
            if all.insert(tensor.clone(), Saved { file, stored }).is_some() {
                return Err(damaged(format!("tensor `{tensor}` is in two files")));
            }
        }
    }
    Ok(all)
}

pub(super) fn bytes(tensors: &Tensors<'_>) -> u64 {
    let ranges = tensors.values().map(|saved| &saved.stored.range);
    ranges.map(|range| range.end - range.start).sum()
}
