//! A model's sizes, of the `config.json` in its folder.

use std::path::Path;

use clap::ValueEnum;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::output::{self, Result};

/// The most bytes of a `config.json`.
const MOST: u64 = 1 << 22;

const FAMILIES: [&str; 4] = ["llama", "mistral", "qwen2", "qwen3"];

/// A type that the library trains in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
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

impl Fields {
    fn get<T: DeserializeOwned>(&self, name: &str) -> std::result::Result<Option<T>, String> {
        let value = self.0.get(name).unwrap_or(&Value::Null);
        let wrong = |_| format!("invalid value of `{name}`: {value}");
        Option::deserialize(value).map_err(wrong)
    }

    /// From 1 to a power of two that keeps sums of bytes within 64 bits.
    fn size(
        &self,
        name: &str,
        bits: u32,
        default: Option<u64>,
    ) -> std::result::Result<u64, String> {
        let most = 1 << bits;
        match self.get(name)?.or(default) {
            Some(value) if (1..=most).contains(&value) => Ok(value),
            Some(value) => Err(format!("`{name}` must be from 1 to {most}, got {value}")),
            None => Err(format!("`{name}` is missing")),
        }
    }
}

impl Config {
    /// Reads the folder's `config.json`.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let shown = path.display();
        let bytes = output::read_all(output::open(&path)?, MOST, &shown)?;
        let read = serde_json::from_slice(&bytes);
        let fields = read.map_err(|error| format!("cannot read {shown}: {error}"))?;
        Ok(Self::of(&Fields(fields)).map_err(|error| format!("{shown}: {error}"))?)
    }

    fn of(fields: &Fields) -> std::result::Result<Self, String> {
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
