//! The sizes of a model, of the `config.json` in its folder.

use std::path::Path;

use candle_core::DType;
use serde::Deserialize;

use super::super::output::{Result, read};

/// The most bytes of a `config.json`.
const MOST: u64 = 1 << 22;

const FAMILIES: [&str; 4] = ["llama", "mistral", "qwen2", "qwen3"];

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
    pub key_heads: u64,
    /// The width of a head.
    pub head: u64,
    /// The embedding is also the last layer.
    pub is_tied: bool,
    pub has_head_norms: bool,
    has_key_bias: bool,
    has_output_bias: bool,
    has_mlp_bias: bool,
    pub context: Option<u64>,
    pub dtype: Option<DType>,
}

/// The fields that decide, under their names in the file.
#[derive(Debug, Deserialize)]
struct Fields {
    model_type: Option<String>,
    vocab_size: Option<u64>,
    hidden_size: Option<u64>,
    intermediate_size: Option<u64>,
    num_hidden_layers: Option<u64>,
    num_attention_heads: Option<u64>,
    num_key_value_heads: Option<u64>,
    head_dim: Option<u64>,
    max_position_embeddings: Option<u64>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    dtype: Option<String>,
    /// The older name.
    torch_dtype: Option<String>,
}

impl Config {
    /// `None` if the folder has no `config.json`.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join("config.json");
        if !path.try_exists()? {
            return Ok(None);
        }
        let bytes = read(&path, MOST)?;
        let fields = serde_json::from_slice(&bytes);
        let fields = fields.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let config = Self::of(fields);
        Ok(Some(
            config.map_err(|error| format!("{}: {error}", path.display()))?,
        ))
    }

    fn of(fields: Fields) -> std::result::Result<Self, String> {
        let family = fields.model_type.ok_or("`model_type` is missing")?;
        if !FAMILIES.contains(&&*family) {
            let known = FAMILIES.join(", ");
            return Err(format!("`model_type` is `{family}`, supported are {known}"));
        }
        // Powers of two that keep sums of bytes within 64 bits.
        let size = |name, value: Option<u64>, most: u32| match value {
            Some(value) if (1..=1 << most).contains(&value) => Ok(value),
            Some(value) => Err(format!(
                "`{name}` must be from 1 to {}, got {value}",
                1u64 << most
            )),
            None => Err(format!("`{name}` is missing")),
        };
        let width = size("hidden_size", fields.hidden_size, 20)?;
        let heads = size("num_attention_heads", fields.num_attention_heads, 14)?;
        let head = match family.as_str() {
            "qwen3" => 128,
            _ => (width / heads).max(1),
        };
        let attention_bias = fields.attention_bias.unwrap_or(false);
        Ok(Self {
            vocabulary: size("vocab_size", fields.vocab_size, 26)?,
            inner: size("intermediate_size", fields.intermediate_size, 22)?,
            layers: size("num_hidden_layers", fields.num_hidden_layers, 11)?,
            key_heads: size(
                "num_key_value_heads",
                fields.num_key_value_heads.or(Some(heads)),
                14,
            )?,
            head: size("head_dim", fields.head_dim.or(Some(head)), 10)?,
            is_tied: fields.tie_word_embeddings.unwrap_or(false),
            has_head_norms: family == "qwen3",
            has_key_bias: attention_bias && family != "mistral" || family == "qwen2",
            has_output_bias: attention_bias && matches!(&*family, "llama" | "qwen3"),
            has_mlp_bias: fields.mlp_bias.unwrap_or(false) && family == "llama",
            context: fields
                .max_position_embeddings
                .filter(|context| *context > 0),
            dtype: fields
                .dtype
                .or(fields.torch_dtype)
                .and_then(|name| dtype(&name)),
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
    pub fn of_block(&self) -> Vec<Vec<u64>> {
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
    pub fn parameters(&self) -> Vec<Vec<u64>> {
        let tables = if self.is_tied { 1 } else { 2 };
        let mut shapes = vec![vec![self.vocabulary, self.width]; tables];
        shapes.push(vec![self.width]);
        for _ in 0..self.layers {
            shapes.extend(self.of_block());
        }
        shapes
    }
}

/// Of a name in PyTorch or here.
pub fn dtype(name: &str) -> Option<DType> {
    match name.trim_start_matches("torch.") {
        "float32" | "f32" => Some(DType::F32),
        "bfloat16" | "bf16" => Some(DType::BF16),
        "float16" | "f16" => Some(DType::F16),
        _ => None,
    }
}
