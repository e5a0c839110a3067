use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{Device, Error, Tensor};
use safetensors::SafeTensors;

use crate::error::Result;

/// An optimizer's state as named tensors in host memory, and its hyper-parameters and counters as words; from
/// [`Fused::state`](super::Fused::state).
///
/// For the parameter `hidden.weight` AdamW has `hidden.weight.exp_avg`, `hidden.weight.exp_avg_sq` and `hidden.weight.step`: the
/// names are PyTorch's. With master weights there is `hidden.weight.master` too.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom::{AdamW, ParamsAdamW, StateDict};
/// use candle_nn::{linear, VarBuilder, VarMap};
///
/// let varmap = VarMap::new();
/// linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let mut optimizer = AdamW::new(&varmap, ParamsAdamW::default())?;
/// # let path = std::env::temp_dir().join(format!("candle-headroom-{}.safetensors", std::process::id()));
/// optimizer.state()?.save(&path)?;
/// optimizer.load_state(&StateDict::load(&path)?)?;
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct StateDict {
    /// All that is kept for the parameters, as `PARAMETER.NAME`.
    pub tensors: BTreeMap<String, Tensor>,
    /// `optimizer`, each hyper-parameter by its name, `group.INDEX.…` and the counters.
    pub metadata: BTreeMap<String, String>,
}

impl StateDict {
    /// Writes a safetensors file, with the words in its metadata. The file appears under its name when it is whole: what stood there
    /// is replaced at that moment and not before.
    ///
    /// # Errors
    /// candle's, with the error of the file system.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let part = beside(path);
        let metadata: HashMap<_, _> = self.metadata.clone().into_iter().collect();
        let written = safetensors::serialize_to_file(&self.tensors, Some(metadata), &part)
            .map_err(Error::from)
            .and_then(|()| {
                // For writing: Windows flushes no other.
                File::options().write(true).open(&part)?.sync_all()?;
                Ok(std::fs::rename(&part, path)?)
            });
        written.map_err(|error| {
            // Nobody looks for half a file; that it cannot be removed is no worse than that it could not be written.
            let _ = std::fs::remove_file(&part);
            error.with_path(path).into()
        })
    }

    /// Reads a safetensors file: one that [`save`](Self::save) wrote, or PyTorch's state by the same names.
    ///
    /// # Errors
    /// candle's, where the file cannot be read or is no safetensors file.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let read = || -> candle_core::Result<Self> {
            let bytes = std::fs::read(path)?;
            let (_, header) = SafeTensors::read_metadata(&bytes)?;
            let metadata = header.metadata().clone().unwrap_or_default();
            let tensors = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu)?;
            Ok(Self {
                tensors: tensors.into_iter().collect(),
                metadata: metadata.into_iter().collect(),
            })
        };
        Ok(read().map_err(|error| error.with_path(path))?)
    }
}

/// A name in the same folder, so that renaming is a single act of the file system; another one for each call.
fn beside(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{}-{count}.part", std::process::id()));
    path.with_file_name(name)
}
