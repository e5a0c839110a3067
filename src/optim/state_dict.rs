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
/// let state = StateDict::load(&path)?;
/// assert_eq!(state.tensors["weight.exp_avg"].dims(), [2, 4]); // as the parameter `weight`
/// optimizer.load_state(&state)?;
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
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom::optim::StateDict;
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let path = temporary.path().join("optimizer.safetensors");
    /// let mut state = StateDict::default(); // or `optimizer.state()?`
    /// let zeros = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// state.tensors.insert("w.exp_avg".to_owned(), zeros);
    /// state.metadata.insert("note".to_owned(), "after epoch 3".to_owned());
    /// state.save(&path)?;
    /// assert_eq!(StateDict::load(&path)?.metadata["note"], "after epoch 3");
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
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
    /// ```
    /// use candle_core::{DType, Device, Var};
    /// use candle_headroom::AdamW;
    /// use candle_headroom::optim::{Commit, StateDict};
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let path = temporary.path().join("optimizer.safetensors");
    /// let w = Var::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// let mut optimizer = AdamW::builder(vec![("w", w)]).build()?;
    /// optimizer.state()?.save(&path)?;
    /// let state = StateDict::load(&path)?;
    /// assert_eq!(state.tensors["w.exp_avg_sq"].dims(), [2, 3]);
    /// optimizer.load_state(&state)?;
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
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
    /// ```
    /// # use candle_core::{DType, Device, Var};
    /// # use candle_headroom::AdamW;
    /// # use candle_headroom::optim::{Commit, Shard};
    /// use candle_headroom::optim::StateDict;
    ///
    /// # let mut ranks = Vec::new();
    /// # for rank in 0..2 {
    /// #     let w = Var::ones(1024, DType::F32, &Device::Cpu)?;
    /// #     let mut optimizer = AdamW::builder(vec![("w", w.clone())]).sharded().build()?;
    /// #     let mut shard = Shard::of(optimizer.parameters());
    /// #     shard.own(&w, rank * 512..(rank + 1) * 512);
    /// #     optimizer.shard(&shard, None)?;
    /// #     optimizer.commit(&w.sqr()?.backward()?)?;
    /// #     ranks.push(optimizer.state()?);
    /// # }
    /// // `ranks` has what `optimizer.state()` returned on each of two ranks, for a parameter `w` of 1,024 elements.
    /// assert_eq!(ranks[0].tensors["w.exp_avg"].dims(), [512]);
    /// let whole = StateDict::merge(ranks)?;
    /// assert_eq!(whole.tensors["w.exp_avg"].dims(), [1024]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
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
        let (mut states, mut pieces) = (ranks, Vec::new());
        for state in &mut states {
            let text = take_pieces(&mut state.metadata)?;
            pieces.push(read_pieces(&text)?);
        }
        let Some(first) = states.first() else {
            return Err(refused("there are none"));
        };
        let mut whole = Self {
            tensors: BTreeMap::new(),
            metadata: first.metadata.clone(),
        };
        let mut all = states.iter();
        if let Some(rank) = all.position(|state| state.metadata != whole.metadata) {
            let what = format!("the counters or options of state {rank} are not those of state 0");
            return Err(refused(what));
        }
        let names = pieces.iter().flat_map(|pieces| pieces.keys());
        for name in names.collect::<BTreeSet<_>>() {
            whole.take(name, &mut states, &pieces)?;
        }
        Ok(whole)
    }

    /// Takes the state of one parameter from all ranks, so that no more than one tensor is there twice.
    fn take(
        &mut self,
        name: &str,
        states: &mut [Self],
        pieces: &[BTreeMap<String, Piece>],
    ) -> Result<()> {
        let mut of_ranks = Vec::new();
        for (rank, pieces) in pieces.iter().enumerate() {
            let without = || refused(format!("state {rank} is without parameter `{name}`"));
            of_ranks.push(pieces.get(name).ok_or_else(without)?);
        }
        let Some(Piece { shape, kept, .. }) = of_ranks.first() else {
            return Ok(());
        };
        if (of_ranks.iter()).any(|piece| (&piece.shape, &piece.kept) != (shape, kept)) {
            return Err(refused(format!("the shapes of parameter `{name}` differ")));
        }
        // The tensors of ranks that own elements, with their ranges; the others have none.
        let mut taken = |kept: &str| {
            let name = entry(name, kept);
            let owners = states.iter_mut().zip(&of_ranks);
            let owners = owners.filter(|(_, piece)| !piece.ranges.is_empty());
            let taken = owners.map(|(state, piece)| match state.tensors.remove(&name) {
                Some(tensor) => Ok((piece.ranges.as_slice(), tensor)),
                None => Err(refused(format!("a state is without `{name}`"))),
            });
            taken.collect::<Result<Vec<_>>>()
        };
        // The number of updates is the same on all of them.
        let mut step = None;
        for (_, tensor) in taken(STEP)? {
            let here: i64 = tensor.to_dtype(DType::I64)?.to_scalar()?;
            if *step.get_or_insert(here) != here {
                let what = format!("the numbers of updates of parameter `{name}` differ");
                return Err(refused(what));
            }
        }
        let step = Tensor::new(step.unwrap_or(0), &Device::Cpu)?;
        self.tensors.insert(entry(name, STEP), step);
        for kept in kept {
            let joined = join(name, shape, kept == MASTER, taken(kept)?)?;
            let joined = joined.map(|tensor| (entry(name, kept), tensor));
            self.tensors.extend(joined);
        }
        Ok(())
    }
}

/// The elements of a state that one rank has.
#[derive(Debug)]
pub struct Own {
    /// The document.
    pub pieces: String,
    parameters: BTreeMap<String, Piece>,
}

impl Own {
    /// Of a rank with this part of a state.
    pub fn of(part: &mut StateDict) -> Result<Self> {
        let pieces = take_pieces(&mut part.metadata)?;
        let parameters = read_pieces(&pieces)?;
        Ok(Self { pieces, parameters })
    }

    /// Returns the rank's elements of a whole tensor, range after range; `None` if it has none of them. What it does not know stays whole.
    pub fn cut(&self, name: &str, whole: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let piece = name.rsplit_once('.').and_then(|(parameter, kept)| {
            let piece = self.parameters.get(parameter)?;
            piece.kept.iter().any(|it| it == kept).then_some(piece)
        });
        let is_cut =
            |it: &&Piece| it.shape == whole.dims() && it.ranges != [(0, whole.elem_count())];
        let Some(Piece { ranges, .. }) = piece.filter(is_cut) else {
            return Ok(Some(whole.clone()));
        };
        let row = whole.flatten_all()?;
        let parts = ranges
            .iter()
            .map(|&(start, end)| row.narrow(0, start, end - start));
        match parts.collect::<candle_core::Result<Vec<_>>>()?.as_slice() {
            [] => Ok(None),
            // Not a view, by which the whole would live on.
            [part] => part.force_contiguous().map(Some),
            parts => Tensor::cat(parts, 0).map(Some),
        }
    }
}

/// Reads the document that says of which elements of each parameter a state is.
pub fn read_pieces(document: &str) -> Result<BTreeMap<String, Piece>> {
    let read = serde_json::from_str(document);
    read.map_err(|error| refused(format!("{PIECES} cannot be read, {error}")))
}

/// Removes what says which elements a state is of from its metadata.
pub fn take_pieces(metadata: &mut BTreeMap<String, String>) -> Result<String> {
    let pieces = metadata.remove(PIECES);
    pieces.ok_or_else(|| refused("one of several is whole already"))
}

/// Returns a tensor of a parameter from the ranks' ranges of its elements; `None` if it is left out.
fn join(
    name: &str,
    shape: &[usize],
    is_master: bool,
    parts: Vec<(&[(usize, usize)], Tensor)>,
) -> Result<Option<Tensor>> {
    // In bytes of f64, which have to be a number too.
    let mut dims = shape.iter();
    let bytes = dims.try_fold(8, |bytes: usize, dim| bytes.checked_mul(*dim));
    let bytes = bytes.ok_or_else(|| refused(format!("parameter `{name}` is too large")))?;
    let elements = bytes / 8;
    if parts.is_empty() {
        // Master weights that are missing start from the parameter. One zero stands for all: that there are so many is only said.
        let is_new = !is_master || elements == 0;
        let new = is_new.then(|| Tensor::zeros((), DType::F32, &Device::Cpu)?.broadcast_as(shape));
        return Ok(new.transpose()?);
    }
    let mut found = Vec::new();
    for (ranges, tensor) in parts {
        if *ranges == [(0, elements)] {
            found.push(((0, elements), tensor));
            continue;
        }
        let (tensor, mut start) = (tensor.flatten_all()?, 0);
        for &(from, to) in ranges {
            let len = to.saturating_sub(from);
            found.push(((from, to), tensor.narrow(0, start, len)?));
            start += len;
        }
    }
    found.sort_by_key(|(range, _)| *range);
    let ends = found.iter().map(|((_, to), _)| *to);
    let starts = found.iter().map(|((from, _), _)| *from);
    for (end, start) in std::iter::once(0).chain(ends).zip(starts.chain([elements])) {
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

fn refused(what: impl Display) -> crate::error::Error {
    invalid!(
        Optimizer,
        "the ranks' states cannot be put together: {what}; pass those of all ranks, taken after the same update"
    )
}
