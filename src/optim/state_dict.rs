use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use candle_core::{Device, Error, Tensor};
use safetensors::SafeTensors;
use safetensors::tensor::{Metadata, TensorInfo};

use crate::error::Result;
use crate::replace::replace;

/// An optimizer's state: named tensors in host memory, and text; from [`Commit::state`](super::Commit::state).
///
/// AdamW has `hidden.weight.exp_avg`, `hidden.weight.exp_avg_sq` (each of the parameter's shape) and `hidden.weight.step` (a
/// scalar) for the parameter `hidden.weight`: the names are PyTorch's. With master weights there is `hidden.weight.master` too.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom::optim::StateDict;
/// use candle_headroom::AdamW;
/// use candle_nn::{linear, VarBuilder, VarMap};
///
/// let varmap = VarMap::new();
/// linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let mut optimizer = AdamW::builder(&varmap).build()?;
/// # let path = std::env::temp_dir().join(format!("candle-headroom-{}.safetensors", std::process::id()));
/// optimizer.state()?.save(&path)?;
/// optimizer.load_state(&StateDict::load(&path)?)?;
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct StateDict {
    /// Tensors of the optimizer's state, as `PARAMETER.NAME`.
    pub tensors: BTreeMap<String, Tensor>,
    /// JSON documents. `optimizer` holds the hyper-parameters, the options of the groups and the counters.
    pub metadata: BTreeMap<String, String>,
}

impl StateDict {
    /// Writes a safetensors file, with the text in its metadata. The file appears under its name when it is complete; until then
    /// the old file stays. It keeps the mode of the old file, and a symbolic link is followed.
    ///
    /// Several processes may save to one path. The next save removes the temporary file that a killed one left.
    ///
    /// # Errors
    /// Errors from candle, with the error of the file system. A path that names something else than a regular file is refused.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let saved = replace(path, |file| {
            self.write(&mut BufWriter::with_capacity(1 << 20, file))
        });
        saved.map_err(|error| error.with_path(path).into())
    }

    /// As `safetensors::serialize_to_file`, which makes a temporary file of its own.
    fn write(&self, to: &mut impl Write) -> candle_core::Result<()> {
        let mut tensors: Vec<_> = self.tensors.iter().collect();
        // Larger elements first, so that all are aligned.
        tensors.sort_by_key(|(_, tensor)| std::cmp::Reverse(tensor.dtype().size_in_bytes()));
        let mut end = 0;
        let infos = tensors.iter().map(|(name, tensor)| {
            let start = end;
            end += tensor.elem_count() * tensor.dtype().size_in_bytes();
            let info = TensorInfo {
                dtype: tensor.dtype().into(),
                shape: tensor.dims().to_vec(),
                data_offsets: (start, end),
            };
            (name.to_string(), info)
        });
        let infos = infos.collect();
        let text = self.metadata.clone().into_iter().collect();
        let mut header =
            serde_json::to_vec(&Metadata::new(Some(text), infos)?).map_err(Error::wrap)?;
        header.resize(header.len().next_multiple_of(8), b' ');
        to.write_all(&(header.len() as u64).to_le_bytes())?;
        to.write_all(&header)?;
        for (_, tensor) in tensors {
            tensor.write_bytes(to)?;
        }
        Ok(to.flush()?)
    }

    /// Reads a safetensors file: one that [`save`](Self::save) wrote, or PyTorch's state by the same names.
    ///
    /// # Errors
    /// Errors from candle, if the file cannot be read or is no safetensors file.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let read = || -> candle_core::Result<Self> {
            let bytes = std::fs::read(path)?;
            let (_, header) = SafeTensors::read_metadata(&bytes)?;
            let text = header.metadata().clone().unwrap_or_default();
            let tensors = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu)?;
            Ok(Self {
                tensors: tensors.into_iter().collect(),
                metadata: text.into_iter().collect(),
            })
        };
        Ok(read().map_err(|error| error.with_path(path))?)
    }
}
