use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use candle_core::{Device, Error, Tensor};
use safetensors::SafeTensors;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::files::replace;

/// An optimizer's state: named tensors in host memory, and text; from [`Commit::state`](super::Commit::state).
///
/// AdamW has `hidden.weight.exp_avg`, `hidden.weight.exp_avg_sq` (each of the parameter's shape) and `hidden.weight.step` (a
/// scalar) for the parameter `hidden.weight`: the names are PyTorch's. With master weights there is `hidden.weight.master` too.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom::optim::{Commit, StateDict};
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
    /// the old file stays. It keeps the mode of the old file, and a symbolic link is followed. Several processes may save to one path.
    ///
    /// # Errors
    /// Errors from candle, with the error of the file system: a full disk, or a limit on the size of files (`ulimit -f`). A path that names
    /// something else than a regular file is refused.
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
        tensors.sort_by_key(|(_, tensor)| place_in_file(tensor));
        let named = tensors
            .iter()
            .map(|(name, tensor)| (name.as_str(), *tensor));
        to.write_all(&file_header(named, &self.metadata)?)?;
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
        let bytes = std::fs::read(path).map_err(Error::from);
        let read = bytes.and_then(|bytes| Self::from_bytes(&bytes));
        Ok(read.map_err(|error| error.with_path(path))?)
    }

    /// The bytes of a file that holds it.
    pub(crate) fn to_bytes(&self) -> candle_core::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.write(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> candle_core::Result<Self> {
        let (_, header) = SafeTensors::read_metadata(bytes)?;
        let text = header.metadata().clone().unwrap_or_default();
        let tensors = candle_core::safetensors::load_buffer(bytes, &Device::Cpu)?;
        Ok(Self {
            tensors: tensors.into_iter().collect(),
            metadata: text.into_iter().collect(),
        })
    }
}

/// The key by which the tensors of a safetensors file are sorted: larger elements first, so that all are aligned.
pub(crate) fn place_in_file(tensor: &Tensor) -> Reverse<usize> {
    Reverse(tensor.dtype().size_in_bytes())
}

/// The beginning of a safetensors file, up to the data of these tensors in this order.
pub(crate) fn file_header<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a Tensor)>,
    metadata: &BTreeMap<String, String>,
) -> candle_core::Result<Vec<u8>> {
    let mut end = 0;
    let infos = tensors.map(|(name, tensor)| {
        let start = end;
        end += tensor.elem_count() * tensor.dtype().size_in_bytes();
        let info = TensorInfo {
            dtype: tensor.dtype().into(),
            shape: tensor.dims().to_vec(),
            data_offsets: (start, end),
        };
        (name.to_owned(), info)
    });
    let infos = infos.collect();
    // safetensors writes an empty map without any tensor as JSON that it cannot read.
    let text = (!metadata.is_empty()).then(|| metadata.clone().into_iter().collect());
    let mut json = serde_json::to_vec(&Metadata::new(text, infos)?).map_err(Error::wrap)?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok(header)
}

/// The document with hyper-parameters, options and counters.
pub const OPTIMIZER: &str = "optimizer";
/// The document of a rank's state that says which elements it is of: a [`Piece`] of each parameter.
pub const PIECES: &str = "pieces";

/// How often a parameter was updated.
pub const STEP: &str = "step";
/// A parameter's master weights.
pub const MASTER: &str = "master";

/// The name of a tensor.
pub fn entry(parameter: &str, name: &str) -> String {
    format!("{parameter}.{name}")
}

/// The elements of one parameter whose state a rank has. Its tensors hold them range after range.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// The whole parameter's shape, which is that of the whole tensors of state.
    pub shape: Vec<usize>,
    /// The first element of each range, and the one behind its last.
    pub ranges: Vec<(usize, usize)>,
    /// The names of the tensors of state.
    pub kept: Vec<String>,
}
