//! A model's sizes, of the files in its folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use safetensors::tensor::{Dtype as Saved, Metadata};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::output::{self, Result};

/// The most bytes of a `config.json`.
const MOST: u64 = 1 << 22;

/// The longest header that safetensors allow, in bytes.
const LONGEST: u64 = 100_000_000;

const FAMILIES: [&str; 4] = ["llama", "mistral", "qwen2", "qwen3"];

/// A type that the library trains in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    #[value(alias = "float32")]
    F32,
    #[value(alias = "bfloat16")]
    Bf16,
    #[value(alias = "float16")]
    F16,
}

impl Dtype {
    pub fn size(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// The type in which tensors are trained that are saved in this one: none for integers and other quantized numbers.
    fn of(saved: Saved) -> Option<Self> {
        match saved {
            Saved::F64 | Saved::F32 => Some(Self::F32),
            Saved::BF16 => Some(Self::Bf16),
            Saved::F16 => Some(Self::F16),
            _ => None,
        }
    }
}

pub type Shape = Vec<u64>;

/// The number of elements of a shape.
pub fn elements(shape: &[u64]) -> u64 {
    let sizes = shape.iter();
    sizes.fold(1, |product, size| product.saturating_mul(*size))
}

/// The sum over shapes, of elements or bytes.
pub fn sum(shapes: &[Shape], of: impl Fn(&[u64]) -> u64) -> u64 {
    let shapes = shapes.iter();
    shapes.fold(0, |sum, shape| sum.saturating_add(of(shape)))
}

/// A decoder of the Llama family.
#[derive(Debug)]
pub struct Config {
    pub family: String,
    pub vocabulary: u64,
    pub width: u64,
    /// Of the perceptrons.
    pub inner: u64,
    pub layers: u64,
    pub heads: u64,
    key_heads: u64,
    /// The width of a head.
    head: u64,
    /// The embedding is also the last layer.
    pub is_tied: bool,
    pub has_head_norms: bool,
    has_key_bias: bool,
    has_output_bias: bool,
    has_mlp_bias: bool,
    pub context: Option<u64>,
    pub dtype: Option<Dtype>,
}

/// The fields of a `config.json`.
struct Fields(Map<String, Value>);

/// What they say, or what is wrong with them.
type Outcome<T> = std::result::Result<T, String>;

impl Fields {
    fn get<T: DeserializeOwned>(&self, name: &str) -> Outcome<Option<T>> {
        let value = self.0.get(name).unwrap_or(&Value::Null);
        let wrong = |_| format!("invalid value of `{name}`: {value}");
        Option::deserialize(value).map_err(wrong)
    }

    /// From 1 to a power of two that keeps sums of bytes within 64 bits.
    fn size(&self, name: &str, bits: u32, default: Option<u64>) -> Outcome<u64> {
        let most = 1 << bits;
        match self.get(name)?.or(default) {
            Some(value) if (1..=most).contains(&value) => Ok(value),
            Some(value) => Err(format!("`{name}` must be from 1 to {most}, got {value}")),
            None => Err(format!("`{name}` is missing")),
        }
    }
}

impl Config {
    /// `None` if the folder has no `config.json`.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join("config.json");
        if !path.try_exists()? {
            return Ok(None);
        }
        let fields = Fields(json(&path, MOST)?);
        let config = Self::of(&fields).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Some(config))
    }

    fn of(fields: &Fields) -> Outcome<Self> {
        let family: Option<String> = fields.get("model_type")?;
        let family = family.ok_or("`model_type` is missing")?;
        if !FAMILIES.contains(&&*family) {
            let known = FAMILIES.join(", ");
            return Err(format!("`model_type` is `{family}`, supported are {known}"));
        }
        let flag = |name| fields.get(name).map(Option::unwrap_or_default);
        let (attention_bias, mlp_bias): (bool, bool) = (flag("attention_bias")?, flag("mlp_bias")?);
        let width = fields.size("hidden_size", 20, None)?;
        let heads = fields.size("num_attention_heads", 14, None)?;
        let head = match family.as_str() {
            "qwen3" => 128,
            _ => (width / heads).max(1),
        };
        // The second name is the older one.
        let dtype: Option<String> = fields.get("dtype")?.or(fields.get("torch_dtype")?);
        let dtype =
            dtype.and_then(|name| Dtype::from_str(name.trim_start_matches("torch."), false).ok());
        let context: Option<u64> = fields.get("max_position_embeddings")?;
        Ok(Self {
            vocabulary: fields.size("vocab_size", 26, None)?,
            inner: fields.size("intermediate_size", 22, None)?,
            layers: fields.size("num_hidden_layers", 11, None)?,
            key_heads: fields.size("num_key_value_heads", 14, Some(heads))?,
            head: fields.size("head_dim", 10, Some(head))?,
            is_tied: flag("tie_word_embeddings")?,
            has_head_norms: family == "qwen3",
            has_key_bias: attention_bias && family != "mistral" || family == "qwen2",
            has_output_bias: attention_bias && matches!(&*family, "llama" | "qwen3"),
            has_mlp_bias: mlp_bias && family == "llama",
            context: context.filter(|context| *context > 0),
            dtype,
            family,
            width,
            heads,
        })
    }

    pub fn query_width(&self) -> u64 {
        self.heads * self.head
    }

    pub fn key_width(&self) -> u64 {
        self.key_heads * self.head
    }

    /// The linear layers of a block: name, inputs, outputs, and whether they have a bias.
    pub fn linear(&self) -> [(&'static str, u64, u64, bool); 7] {
        let (width, inner) = (self.width, self.inner);
        let (queries, keys) = (self.query_width(), self.key_width());
        [
            ("q_proj", width, queries, self.has_key_bias),
            ("k_proj", width, keys, self.has_key_bias),
            ("v_proj", width, keys, self.has_key_bias),
            ("o_proj", queries, width, self.has_output_bias),
            ("gate_proj", width, inner, self.has_mlp_bias),
            ("up_proj", width, inner, self.has_mlp_bias),
            ("down_proj", inner, width, self.has_mlp_bias),
        ]
    }

    /// The shapes of a block's parameters.
    pub fn of_block(&self) -> Vec<Shape> {
        let mut shapes = vec![vec![self.width]; 2];
        for (_, inputs, outputs, has_bias) in self.linear() {
            shapes.push(vec![outputs, inputs]);
            shapes.extend(has_bias.then(|| vec![outputs]));
        }
        if self.has_head_norms {
            shapes.extend([vec![self.head], vec![self.head]]);
        }
        shapes
    }

    /// The shapes of all parameters.
    pub fn parameters(&self) -> Vec<Shape> {
        let tables = if self.is_tied { 1 } else { 2 };
        let mut shapes = vec![vec![self.vocabulary, self.width]; tables];
        shapes.push(vec![self.width]);
        for _ in 0..self.layers {
            shapes.extend(self.of_block());
        }
        shapes
    }
}

/// The float tensors of all safetensors files of a folder, of their headers alone.
#[derive(Debug, Default)]
pub struct Weights {
    pub shapes: Vec<Shape>,
    /// The type in which most elements are trained.
    pub dtype: Option<Dtype>,
    /// Tensors left out, because they are no float tensors: those of quantized weights, for example.
    pub left_out: usize,
}

impl Weights {
    /// `None` if the folder has no such file.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let files = files(folder)?;
        let mut weights = Self::default();
        let mut of_types = BTreeMap::<Dtype, u64>::new();
        for file in &files {
            for tensor in header(file)?.tensors().into_values() {
                let Some(dtype) = Dtype::of(tensor.dtype) else {
                    weights.left_out += 1;
                    continue;
                };
                let shape: Shape = tensor.shape.iter().map(|size| *size as u64).collect();
                let count = of_types.entry(dtype).or_default();
                *count = count.saturating_add(elements(&shape));
                weights.shapes.push(shape);
            }
        }
        let most = of_types.into_iter().max_by_key(|(_, count)| *count);
        weights.dtype = most.map(|(dtype, _)| dtype);
        Ok((!files.is_empty()).then_some(weights))
    }
}

/// The shards that an index names, or `model.safetensors`, or whatever there is.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let path = folder.join("model.safetensors.index.json");
    if path.try_exists()? {
        let index: Index = json(&path, LONGEST)?;
        let names: BTreeSet<_> = index.weight_map.values().collect();
        if names.is_empty() {
            return Err(format!("{} names no file", path.display()).into());
        }
        return Ok(names.into_iter().map(|name| folder.join(name)).collect());
    }
    let single = folder.join("model.safetensors");
    if single.try_exists()? {
        return Ok(vec![single]);
    }
    let paths = folder.read_dir()?.map(|entry| Ok(entry?.path()));
    let mut found = paths.collect::<Result<Vec<_>>>()?;
    let fits = |path: &PathBuf| path.extension().is_some_and(|end| end == "safetensors");
    found.retain(fits);
    found.sort();
    Ok(found)
}

fn header(path: &Path) -> Result<Metadata> {
    let shown = path.display();
    let wrong = |why: &dyn Display| format!("cannot read {shown}: {why}");
    let (file, length) = output::open(path)?;
    let mut bytes = output::read_all((&file).take(8), 8, &shown)?;
    let first = bytes.first_chunk().copied().map(u64::from_le_bytes);
    let rest = length.saturating_sub(8);
    let Some(header) = first.filter(|header| *header <= LONGEST.min(rest)) else {
        return Err(wrong(&"not a safetensors file, or not whole").into());
    };
    bytes = output::read_all(file.take(header), header, &shown)?;
    let metadata: Metadata = serde_json::from_slice(&bytes).map_err(|error| wrong(&error))?;
    if rest - header < metadata.data_len() as u64 {
        return Err(wrong(&"its end is missing").into());
    }
    Ok(metadata)
}

fn json<T: DeserializeOwned>(path: &Path, most: u64) -> Result<T> {
    let (shown, (file, _)) = (path.display(), output::open(path)?);
    let bytes = output::read_all(file, most, &shown)?;
    let read = serde_json::from_slice(&bytes);
    Ok(read.map_err(|error| format!("cannot read {shown}: {error}"))?)
}
