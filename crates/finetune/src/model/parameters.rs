//! The parameters of a model by their names: drawn, set from files, and saved.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Error, Result as CandleResult, Shape, Tensor, Var};
use candle_headroom::fixed_file::{FixedFile, StoredTensor};
use candle_headroom::nn::VarMap;
use candle_headroom::optim::StateDict;
use candle_nn::Init;
use candle_nn::var_builder::SimpleBackend;
use rand::Rng;

/// Bytes of a tensor that are read at once.
const PIECE: usize = 64 << 20;

/// The tensors of safetensors files by name, each of which is read when it is asked for. Nothing is mapped: a file that another program
/// shortens would be a signal that ends the process, and a header that it changes would be other bytes than those that were checked.
#[derive(Clone)]
pub struct Weights(pub Arc<BTreeMap<String, (Arc<FixedFile>, StoredTensor)>>);

impl Weights {
    /// Reads the headers of files, and checks that each file is whole.
    pub fn open(paths: &[PathBuf]) -> Result<Self> {
        let mut all = BTreeMap::new();
        for path in paths {
            let mut open = || {
                let file = Arc::new(FixedFile::open(path)?);
                for (name, stored) in file.tensors()? {
                    ensure!(!all.contains_key(&name), "`{name}` is in two files");
                    all.insert(name, (Arc::clone(&file), stored));
                }
                Ok(())
            };
            open().with_context(|| format!("cannot read {}", path.display()))?;
        }
        Ok(Self(Arc::new(all)))
    }

    /// The shape of a tensor.
    pub fn shape(&self, name: &str) -> Result<&[usize]> {
        let found = self.0.get(name);
        let (_, stored) = found.with_context(|| format!("there is no tensor `{name}`"))?;
        Ok(&stored.shape)
    }

    /// Reads a tensor, and casts it to this type; as it is stored without one.
    pub fn load(&self, name: &str, dtype: Option<DType>, device: &Device) -> Result<Tensor> {
        let shape = self.shape(name)?;
        let stored_as = match self.0.get(name) {
            Some((_, stored)) => DType::try_from(stored.dtype)?,
            None => DType::F32,
        };
        let dtype = dtype.unwrap_or(stored_as);
        in_pieces(shape, stored_as.size_in_bytes(), dtype, device, |rows| {
            self.rows(name, rows, dtype, device)
        })
    }

    /// Reads some rows of a tensor; all of one without dimensions.
    pub fn rows(
        &self,
        name: &str,
        rows: Range<usize>,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let found = self.0.get(name);
        let (file, stored) = found.with_context(|| format!("there is no tensor `{name}`"))?;
        let (all, shape) = (stored.range.clone(), &stored.shape);
        let each = (all.end - all.start) / shape.first().copied().unwrap_or(1).max(1) as u64;
        let at = |row: usize| all.start + row as u64 * each;
        let read = || {
            let bytes = file.read(at(rows.start)..at(rows.end))?;
            let stored_as = DType::try_from(stored.dtype)?;
            let shape = some_rows(shape, rows.len());
            let tensor = Tensor::from_raw_buffer(&bytes, stored_as, &shape, device)?;
            anyhow::Ok(tensor.to_dtype(dtype)?)
        };
        read().with_context(|| format!("cannot read `{name}` of {}", file.path().display()))
    }
}

/// A shape with another number of rows.
pub fn some_rows(shape: &[usize], rows: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    if let Some(first) = shape.first_mut() {
        *first = rows;
    }
    shape
}

/// A tensor whose elements take so many bytes where they are read from. A large one is read in pieces, so that beside the result no more than
/// a piece is in memory.
pub fn in_pieces(
    shape: &[usize],
    element: usize,
    dtype: DType,
    device: &Device,
    read: impl Fn(Range<usize>) -> Result<Tensor>,
) -> Result<Tensor> {
    let count = shape.first().copied().unwrap_or(1);
    let piece = rows_of_piece(shape, element);
    if piece >= count {
        return read(0..count);
    }
    let whole = Tensor::zeros(shape, dtype, device)?;
    for first in (0..count).step_by(piece) {
        let end = count.min(first + piece);
        whole.slice_set(&read(first..end)?, 0, first)?;
    }
    Ok(whole)
}

/// Rows of which a piece is made, at least one.
pub fn rows_of_piece(shape: &[usize], element: usize) -> usize {
    let width: usize = shape.iter().skip(1).product();
    (PIECE / (width * element).max(1)).max(1)
}

impl SimpleBackend for Weights {
    fn get(
        &self,
        expected: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> CandleResult<Tensor> {
        let tensor = self.get_unchecked(name, dtype, device)?;
        if tensor.shape() != &expected {
            let found = tensor.shape();
            candle_core::bail!("{name} has shape {found:?}, the model needs {expected:?}")
        }
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> CandleResult<Tensor> {
        let tensor = self.load(name, Some(dtype), device);
        tensor.map_err(|error| Error::Msg(format!("{error:#}")))
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}

/// The parameters of a map by name.
pub fn named(varmap: &VarMap) -> BTreeMap<String, Var> {
    // A panic while the lock was held leaves a valid map.
    let data = varmap.data().lock();
    let data = data.unwrap_or_else(PoisonError::into_inner);
    data.clone().into_iter().collect()
}

/// Sets each parameter to the tensor of its name, cast to its type. Nothing is changed unless all fit, and with `refuses_others`, unless
/// every tensor belongs to a parameter.
pub fn fill(varmap: &VarMap, weights: &Weights, refuses_others: bool) -> Result<()> {
    let vars = named(varmap);
    let mut problems = Vec::new();
    for (name, var) in &vars {
        let needed = var.dims();
        match weights.0.get(name).map(|(_, stored)| &stored.shape) {
            None => problems.push(format!("{name} is missing")),
            Some(shape) if shape != needed => problems.push(format!(
                "{name} has shape {shape:?}, the model needs {needed:?}"
            )),
            Some(_) => {}
        }
    }
    if refuses_others {
        let others = weights.0.keys().filter(|name| !vars.contains_key(*name));
        problems.extend(others.map(|name| format!("{name} belongs to no parameter")));
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("; "))
    }
    for (name, var) in &vars {
        var.set(&weights.load(name, Some(var.dtype()), var.device())?)?;
    }
    Ok(())
}

/// Saves parameters under their names, as PyTorch's libraries expect it. The file takes its place when it is whole.
pub fn save(varmap: &VarMap, path: &Path) -> Result<()> {
    let vars = named(varmap).into_iter();
    let file = StateDict {
        tensors: vars.map(|(name, var)| (name, var.into_inner())).collect(),
        metadata: [("format".to_owned(), "pt".to_owned())].into(),
    };
    let saved = file.save(path);
    saved.with_context(|| format!("cannot write {}", path.display()))
}

/// Draws the parameters of a new model or of new adapters as transformers and PEFT do: weights from a normal distribution of this
/// deviation, adapters' `lora_A` from a uniform one; biases and `lora_B` are 0, norms 1. candle's generator on the CPU has no
/// seed.
pub fn initialize(varmap: &VarMap, deviation: f64, rng: &mut impl Rng) -> Result<()> {
    for (name, var) in named(varmap) {
        let count = var.elem_count();
        let values: Vec<f32> = match *var.dims() {
            _ if name.ends_with("lora_B.weight") => vec![0.; count],
            [_, inputs] if name.ends_with("lora_A.weight") => {
                let bound = 1. / (inputs as f32).sqrt();
                let drawn = (0..count).map(|_| rng.random_range(-bound..bound));
                drawn.collect()
            }
            [_, _] => (0..count).map(|_| normal(rng) * deviation as f32).collect(),
            // The norms of the rows of the weight already.
            _ if name.ends_with("lora_magnitude_vector") => continue,
            _ if name.ends_with("bias") => vec![0.; count],
            _ => vec![1.; count],
        };
        let values = Tensor::from_vec(values, var.shape(), var.device())?;
        var.set(&values.to_dtype(var.dtype())?)?;
    }
    Ok(())
}

/// A number of the normal distribution, by the method of Box and Muller.
fn normal(rng: &mut impl Rng) -> f32 {
    let radius = (-2. * (1. - rng.random::<f64>()).ln()).sqrt();
    (radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()) as f32
}
