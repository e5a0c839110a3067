//! The options of a model, as in the `config.json` of its folder.

mod family;
mod fields;
mod rope;
mod window;
mod write;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
pub use family::Family;
pub use fields::Fields;
pub use rope::RopeScaling;

pub const CONFIG: &str = "config.json";

/// The largest size of a layer, far above that of any model. Products of them, and sums over all layers, are numbers of parameters that
/// a u64 holds.
const LARGEST: usize = 1 << 24;
const MOST_LAYERS: usize = 1 << 10;

/// A decoder's sizes and options under the names of `config.json`. The default is a small Llama.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub model_type: Family,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f64,
    pub rope_theta: f64,
    pub rope_scaling: Option<RopeScaling>,
    /// Whether the embedding is also the last layer.
    pub tie_word_embeddings: bool,
    /// Biases of the queries, keys and values, and of the attention's output unless the family is Qwen2.
    pub attention_bias: bool,
    pub mlp_bias: bool,
    /// How many tokens a token sees, itself included.
    pub sliding_window: Option<usize>,
    /// The first layer that has the window.
    pub max_window_layers: usize,
    pub initializer_range: f64,
    pub bos_token_id: Option<u32>,
    /// Any of them ends a text.
    pub eos_token_ids: Vec<u32>,
    pub pad_token_id: Option<u32>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            model_type: Family::Llama,
            vocab_size: 1024,
            hidden_size: 128,
            intermediate_size: 352,
            num_hidden_layers: 4,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 32,
            max_position_embeddings: 512,
            rms_norm_eps: 1e-5,
            rope_theta: 1e4,
            rope_scaling: None,
            tie_word_embeddings: true,
            attention_bias: false,
            mlp_bias: false,
            sliding_window: None,
            max_window_layers: 0,
            initializer_range: 0.02,
            bos_token_id: None,
            eos_token_ids: Vec::new(),
            pad_token_id: None,
        }
    }
}

impl Config {
    /// Reads and checks a folder's `config.json`.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(CONFIG);
        let in_file = || format!("cannot read {}", path.display());
        let text = fs::read_to_string(&path).with_context(in_file)?;
        let config = Fields::parse(&text).and_then(|fields| Self::of(&fields));
        config.with_context(in_file)
    }

    fn of(fields: &Fields) -> Result<Self> {
        let family = Family::named(&fields.required::<String>("model_type")?)?;
        fields.check()?;
        let hidden_size = fields.required("hidden_size")?;
        let heads = fields.required::<usize>("num_attention_heads")?;
        // transformers has other defaults for the other families, which no published model leaves out.
        let key_heads = match family {
            Family::Llama => fields.optional("num_key_value_heads")?.unwrap_or(heads),
            _ => fields.required("num_key_value_heads")?,
        };
        let head_dim = match (fields.optional("head_dim")?, family) {
            (Some(width), _) => width,
            (None, Family::Qwen3) => 128,
            (None, _) => hidden_size / heads.max(1),
        };
        let layers = fields.required("num_hidden_layers")?;
        let max_position_embeddings = fields.optional("max_position_embeddings")?.unwrap_or(2048);
        let (sliding_window, max_window_layers) = window::window(fields, family, layers)?;
        let (rope_theta, rope_scaling) = rope::rope(fields, max_position_embeddings)?;
        let config = Self {
            model_type: family,
            vocab_size: fields.required("vocab_size")?,
            hidden_size,
            intermediate_size: fields.required("intermediate_size")?,
            num_hidden_layers: layers,
            num_attention_heads: heads,
            num_key_value_heads: key_heads,
            head_dim,
            max_position_embeddings,
            rms_norm_eps: fields.optional("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta,
            rope_scaling,
            tie_word_embeddings: fields.flag("tie_word_embeddings")?,
            attention_bias: match family {
                Family::Qwen2 => true,
                Family::Mistral => false,
                Family::Llama | Family::Qwen3 => fields.flag("attention_bias")?,
            },
            mlp_bias: family == Family::Llama && fields.flag("mlp_bias")?,
            sliding_window,
            max_window_layers,
            initializer_range: fields.optional("initializer_range")?.unwrap_or(0.02),
            bos_token_id: fields.tokens("bos_token_id")?.first().copied(),
            eos_token_ids: fields.tokens("eos_token_id")?,
            pad_token_id: fields.tokens("pad_token_id")?.first().copied(),
        };
        config.check()?;
        Ok(config)
    }

    /// Refuses sizes that no decoder can have.
    pub fn check(&self) -> Result<()> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("max_position_embeddings", self.max_position_embeddings),
            ("sliding_window", self.sliding_window.unwrap_or(1)),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            bail!("`{name}` must be at least 1, got 0")
        }
        if let Some((name, size)) = sizes.iter().find(|(_, size)| *size > LARGEST) {
            bail!("`{name}` must be at most {LARGEST}, got {size}")
        }
        if self.num_hidden_layers > MOST_LAYERS {
            let layers = self.num_hidden_layers;
            bail!("`num_hidden_layers` must be at most {MOST_LAYERS}, got {layers}")
        }
        let (heads, key_heads) = (self.num_attention_heads, self.num_key_value_heads);
        if self.query_width() > LARGEST {
            let width = self.head_dim;
            bail!(
                "`num_attention_heads` ({heads}) times `head_dim` ({width}) must be at most {LARGEST}"
            )
        }
        let mut ends = self.eos_token_ids.iter();
        if let Some(end) = ends.find(|end| **end as usize >= self.vocab_size) {
            let size = self.vocab_size;
            bail!("`eos_token_id` must be less than `vocab_size` ({size}), got {end}")
        }
        if !heads.is_multiple_of(key_heads) {
            bail!(
                "`num_attention_heads` ({heads}) must be a multiple of `num_key_value_heads` ({key_heads})"
            )
        }
        if !self.head_dim.is_multiple_of(2) {
            bail!("`head_dim` must be even, got {}", self.head_dim)
        }
        let factors = [
            ("rms_norm_eps", self.rms_norm_eps),
            ("rope_theta", self.rope_theta),
        ];
        if let Some((name, value)) = factors.iter().find(|(_, value)| *value <= 0.) {
            bail!("`{name}` must be positive, got {value}")
        }
        Ok(())
    }

    /// The number of parameters; those of a tied layer count once.
    pub fn parameters(&self) -> usize {
        let hidden = self.hidden_size;
        let (q, kv) = (self.query_width(), self.key_width());
        let linear = |inputs: usize, outputs: usize, has_bias: bool| {
            inputs * outputs + if has_bias { outputs } else { 0 }
        };
        let attention = linear(hidden, q, self.attention_bias)
            + 2 * linear(hidden, kv, self.attention_bias)
            + linear(q, hidden, self.output_bias());
        let mlp = 2 * linear(hidden, self.intermediate_size, self.mlp_bias)
            + linear(self.intermediate_size, hidden, self.mlp_bias);
        let norms = 2 * hidden
            + if self.norms_heads() {
                2 * self.head_dim
            } else {
                0
            };
        let tables = if self.tie_word_embeddings { 1 } else { 2 };
        tables * self.vocab_size * hidden
            + self.num_hidden_layers * (attention + mlp + norms)
            + hidden
    }

    pub fn query_width(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    pub fn key_width(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }

    /// Whether the attention's output has a bias.
    pub fn output_bias(&self) -> bool {
        self.attention_bias && self.model_type != Family::Qwen2
    }

    /// Whether queries and keys are normalized.
    pub fn norms_heads(&self) -> bool {
        self.model_type == Family::Qwen3
    }

    /// The window of a layer.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.sliding_window
            .filter(|_| layer >= self.max_window_layers)
    }
}
