//! An optimizer's state as a file: safetensors under PyTorch's names, with JSON in its metadata. The states of the ranks of a sharded optimizer
//! become the one that a single process would have.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io::{BufWriter, Write};
use std::path::Path;

use candle_core::{DType, Device, Error, Tensor};
use safetensors::SafeTensors;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};

use crate::error::{Result, invalid};
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

impl StateDict {
    /// Puts the states of all ranks of a sharded optimizer together, in any order: to the state that one process without sharding would
    /// have. Any number of ranks can load it, and so can an optimizer that is not sharded. A single state that is whole is returned as it
    /// is. Parameters of which no rank owns an element get new state.
    ///
    /// # Errors
    /// If elements are missing or come twice, or if the states differ in the number of updates or in options
    /// ([`is_optimizer`](crate::Error::is_optimizer)); errors from candle.
    pub fn merge(ranks: Vec<Self>) -> Result<Self> {
        if let [whole] = ranks.as_slice()
            && !whole.metadata.contains_key(PIECES)
        {
            return Ok(whole.clone());
        }
        let parts = ranks.into_iter().map(Part::new);
        let mut parts = parts.collect::<Result<Vec<_>>>()?;
        let Some(first) = parts.first() else {
            return Err(refused("there are none"));
        };
        let text = |part: &Part| part.state.metadata.clone();
        let mut whole = Self {
            tensors: BTreeMap::new(),
            metadata: text(first),
        };
        if let Some(rank) = parts.iter().position(|part| text(part) != whole.metadata) {
            let what = format!("the counters or options of state {rank} are not those of state 0");
            return Err(refused(what));
        }
        let names = parts.iter().flat_map(|part| part.pieces.keys().cloned());
        for name in names.collect::<BTreeSet<_>>() {
            let one = One::find(&name, &parts)?;
            let step = Tensor::new(one.step()?, &Device::Cpu)?;
            whole.tensors.insert(entry(&name, STEP), step);
            for kept in one.whole.kept.clone() {
                let tensor = One::find(&name, &parts)?.joined(&kept)?;
                let entry = entry(&name, &kept);
                // No more than one tensor is there twice.
                for part in &mut parts {
                    part.state.tensors.remove(&entry);
                }
                whole.tensors.extend(tensor.map(|tensor| (entry, tensor)));
            }
        }
        Ok(whole)
    }
}

/// One rank's state, without the document that says what it is of.
struct Part {
    state: StateDict,
    pieces: BTreeMap<String, Piece>,
}

impl Part {
    fn new(mut state: StateDict) -> Result<Self> {
        let pieces = take_pieces(&mut state.metadata)?;
        let pieces = serde_json::from_str(&pieces)
            .map_err(|error| refused(format!("{PIECES} cannot be read, {error}")))?;
        Ok(Self { state, pieces })
    }
}

/// Removes what says which elements a state is of from its metadata.
pub fn take_pieces(metadata: &mut BTreeMap<String, String>) -> Result<String> {
    let pieces = metadata.remove(PIECES);
    pieces.ok_or_else(|| refused("one of several is whole already"))
}

/// The state of one parameter on all ranks.
struct One<'a> {
    name: &'a str,
    /// What all ranks say of the whole.
    whole: &'a Piece,
    elements: usize,
    parts: Vec<(&'a StateDict, &'a [(usize, usize)])>,
}

impl<'a> One<'a> {
    fn find(name: &'a str, parts: &'a [Part]) -> Result<Self> {
        let (mut whole, mut found) = (None, Vec::new());
        for (rank, Part { state, pieces }) in parts.iter().enumerate() {
            let Some(pieces) = pieces.get(name) else {
                return Err(refused(format!(
                    "state {rank} is without parameter `{name}`"
                )));
            };
            let first: &Piece = whole.get_or_insert(pieces);
            if (&first.shape, &first.kept) != (&pieces.shape, &pieces.kept) {
                return Err(refused(format!("the shapes of parameter `{name}` differ")));
            }
            found.push((state, pieces.ranges.as_slice()));
        }
        let whole = whole.ok_or_else(|| refused("there are none"))?;
        // In bytes of f64, which have to be a number too.
        let mut dims = whole.shape.iter();
        let bytes = dims.try_fold(8, |bytes: usize, dim| bytes.checked_mul(*dim));
        let bytes = bytes.ok_or_else(|| refused(format!("parameter `{name}` is too large")))?;
        Ok(Self {
            name,
            whole,
            elements: bytes / 8,
            parts: found,
        })
    }

    fn tensor(&self, state: &'a StateDict, kept: &str) -> Result<&'a Tensor> {
        let name = entry(self.name, kept);
        let tensor = state.tensors.get(&name);
        tensor.ok_or_else(|| refused(format!("a state is without `{name}`")))
    }

    /// The states of ranks that own elements; the others have no tensors.
    fn with_elements(&self) -> impl Iterator<Item = &(&'a StateDict, &'a [(usize, usize)])> {
        self.parts.iter().filter(|(_, ranges)| !ranges.is_empty())
    }

    /// The number of updates, which is the same on all ranks that own elements.
    fn step(&self) -> Result<i64> {
        let mut step = None;
        for (state, _) in self.with_elements() {
            let here = self.tensor(state, STEP)?.to_dtype(DType::I64)?;
            let here = here.to_scalar()?;
            if *step.get_or_insert(here) != here {
                let what = format!("the numbers of updates of parameter `{}` differ", self.name);
                return Err(refused(what));
            }
        }
        Ok(step.unwrap_or(0))
    }

    /// Returns a tensor from all ranks' elements; `None` if it is left out.
    fn joined(&self, kept: &str) -> Result<Option<Tensor>> {
        let (elements, shape) = (self.elements, self.whole.shape.as_slice());
        let (mut found, mut dtype) = (Vec::new(), DType::F32);
        for (state, ranges) in self.with_elements() {
            let tensor = self.tensor(state, kept)?;
            dtype = tensor.dtype();
            if **ranges == [(0, elements)] {
                found.push(((0, elements), tensor.clone()));
                continue;
            }
            let (tensor, mut start) = (tensor.flatten_all()?, 0);
            for &(from, to) in *ranges {
                let len = to.saturating_sub(from);
                found.push(((from, to), tensor.narrow(0, start, len)?));
                start += len;
            }
        }
        if found.is_empty() {
            // Master weights that are missing start from the parameter. One zero stands for all: that there are so many is only said.
            let is_new = kept != MASTER || elements == 0;
            let new = is_new.then(|| Tensor::zeros((), dtype, &Device::Cpu)?.broadcast_as(shape));
            return Ok(new.transpose()?);
        }
        found.sort_by_key(|(range, _)| *range);
        let ends = found.iter().map(|((_, to), _)| *to);
        let starts = found.iter().map(|((from, _), _)| *from);
        for (end, start) in std::iter::once(0).chain(ends).zip(starts.chain([elements])) {
            let name = self.name;
            if end < start {
                let what = format!("elements {end}..{start} of parameter `{name}` are missing");
                return Err(refused(what));
            }
            if start < end {
                let what = format!("elements {start}..{end} of parameter `{name}` come twice");
                return Err(refused(what));
            }
        }
        let tensors: Vec<_> = found.into_iter().map(|(_, tensor)| tensor).collect();
        Ok(Some(Tensor::cat(&tensors, 0)?.reshape(shape)?))
    }
}

fn refused(what: impl Display) -> crate::error::Error {
    invalid!(
        Optimizer,
        "the ranks' states cannot be put together: {what}; pass those of all ranks, taken after the same update"
    )
}
