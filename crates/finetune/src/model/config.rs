//! The options of a model, as in the `config.json` of its folder.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use candle_core::DType;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::rope::{RopeScaling, rope};

const CONFIG: &str = "config.json";

/// The largest size of a layer, far above that of any model. Products of them, and sums over all layers, are numbers of parameters that
/// a u64 holds.
const LARGEST: usize = 1 << 24;
const MOST_LAYERS: usize = 1 << 10;

/// Decoders of one shape, which differ in biases, norms of heads and windows. Their `model_type`s are the names in lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Llama 2 and 3, SmolLM and others of this `model_type`.
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

impl Family {
    /// Whether transformers has an option in this family.
    fn knows(self, option: &str) -> bool {
        match option {
            "attention_bias" => matches!(self, Self::Llama | Self::Qwen3),
            "mlp_bias" => self == Self::Llama,
            "sliding_window" => self != Self::Llama,
            "use_sliding_window" | "max_window_layers" => matches!(self, Self::Qwen2 | Self::Qwen3),
            _ => true,
        }
    }
}

/// A decoder's sizes and options under the names of `config.json`. The default is a small Llama.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
    #[serde(skip)]
    pub eos_token_ids: Vec<u32>,
    pub pad_token_id: Option<u32>,
}

/// A linear layer of each block.
#[derive(Debug, Clone, Copy)]
pub struct LinearLayer {
    /// In the block.
    pub name: &'static str,
    pub inputs: usize,
    pub outputs: usize,
    pub has_bias: bool,
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
        let read = || Self::of(&serde_json::from_str(&fs::read_to_string(&path)?)?);
        read().with_context(|| format!("cannot read {}", path.display()))
    }

    fn of(fields: &Fields) -> Result<Self> {
        let family: Family = fields.required("model_type")?;
        fields.check()?;
        let flag = |name| anyhow::Ok(family.knows(name) && fields.flag(name)?);
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
        let (sliding_window, max_window_layers) = window(fields, family, layers)?;
        let (rope_theta, rope_scaling) = rope(fields, max_position_embeddings)?;
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
            attention_bias: family == Family::Qwen2 || flag("attention_bias")?,
            mlp_bias: flag("mlp_bias")?,
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
        let (heads, key_heads) = (self.num_attention_heads, self.num_key_value_heads);
        let (width, size) = (self.head_dim, self.vocab_size);
        let queries = heads.saturating_mul(width);
        let (positions, window) = (self.max_position_embeddings, self.sliding_window);
        for (name, size, most) in [
            ("`vocab_size`", size, LARGEST),
            ("`hidden_size`", self.hidden_size, LARGEST),
            ("`intermediate_size`", self.intermediate_size, LARGEST),
            ("`num_hidden_layers`", self.num_hidden_layers, MOST_LAYERS),
            ("`num_attention_heads`", heads, LARGEST),
            ("`num_key_value_heads`", key_heads, LARGEST),
            ("`head_dim`", width, LARGEST),
            ("heads times `head_dim`", queries, LARGEST),
            ("`max_position_embeddings`", positions, LARGEST),
            ("`sliding_window`", window.unwrap_or(1), LARGEST),
        ] {
            ensure!(
                (1..=most).contains(&size),
                "{name} must be 1 to {most}, got {size}"
            );
        }
        for end in &self.eos_token_ids {
            ensure!(
                (*end as usize) < size,
                "`eos_token_id` must be less than `vocab_size` ({size}), got {end}"
            );
        }
        ensure!(
            heads.is_multiple_of(key_heads),
            "`num_attention_heads` ({heads}) must be a multiple of `num_key_value_heads` ({key_heads})"
        );
        ensure!(
            width.is_multiple_of(2),
            "`head_dim` must be even, got {width}"
        );
        let (eps, theta) = (self.rms_norm_eps, self.rope_theta);
        ensure!(eps > 0., "`rms_norm_eps` must be positive, got {eps}");
        ensure!(theta > 0., "`rope_theta` must be positive, got {theta}");
        Ok(())
    }

    /// Writes `config.json` into a folder, which is made if it is missing, under the names that all versions of transformers read. `dtype`
    /// is that of the parameters.
    pub fn save(&self, folder: &Path, dtype: Option<DType>) -> Result<()> {
        let mut json = serde_json::to_value(self)?;
        json["architectures"] = json!([format!("{:?}ForCausalLM", self.model_type)]);
        json["hidden_act"] = json!("silu");
        json["attention_dropout"] = json!(0.);
        json["use_cache"] = json!(true);
        json["use_sliding_window"] = json!(self.sliding_window.is_some());
        json["eos_token_id"] = match self.eos_token_ids.as_slice() {
            [] => Value::Null,
            [one] => json!(one),
            several => json!(several),
        };
        if let Some(dtype) = dtype {
            json["torch_dtype"] = json!(match dtype {
                DType::F16 => "float16",
                DType::BF16 => "bfloat16",
                DType::F64 => "float64",
                _ => "float32",
            });
        }
        if let Value::Object(fields) = &mut json {
            fields.retain(|name, _| self.model_type.knows(name));
        }
        write_json(folder, CONFIG, &json)
    }

    /// The number of parameters; those of a tied layer count once.
    pub fn parameters(&self) -> usize {
        let sizes = self.tensors();
        let sizes = sizes
            .iter()
            .map(|(_, shape)| shape.iter().product::<usize>());
        sizes.sum()
    }

    /// The names and shapes of all parameters, as in transformers.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (width, table) = (self.hidden_size, vec![self.vocab_size, self.hidden_size]);
        let mut all = vec![
            ("model.embed_tokens.weight".to_owned(), table.clone()),
            ("model.norm.weight".to_owned(), vec![width]),
        ];
        if !self.tie_word_embeddings {
            all.push(("lm_head.weight".to_owned(), table));
        }
        for block in 0..self.num_hidden_layers {
            let mut put =
                |name: String, shape| all.push((format!("model.layers.{block}.{name}"), shape));
            put("input_layernorm.weight".to_owned(), vec![width]);
            put("post_attention_layernorm.weight".to_owned(), vec![width]);
            if self.norms_heads() {
                put("self_attn.q_norm.weight".to_owned(), vec![self.head_dim]);
                put("self_attn.k_norm.weight".to_owned(), vec![self.head_dim]);
            }
            for layer in self.linear_layers() {
                put(
                    format!("{}.weight", layer.name),
                    vec![layer.outputs, layer.inputs],
                );
                if layer.has_bias {
                    put(format!("{}.bias", layer.name), vec![layer.outputs]);
                }
            }
        }
        all
    }

    /// Those of a block: queries, keys, values and output of the attention, then gate, up and down of the perceptron.
    pub fn linear_layers(&self) -> [LinearLayer; 7] {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let (queries, keys) = self.widths();
        let (bias, mlp_bias) = (self.attention_bias, self.mlp_bias);
        let output_bias = bias && self.model_type != Family::Qwen2;
        [
            ("self_attn.q_proj", hidden, queries, bias),
            ("self_attn.k_proj", hidden, keys, bias),
            ("self_attn.v_proj", hidden, keys, bias),
            ("self_attn.o_proj", queries, hidden, output_bias),
            ("mlp.gate_proj", hidden, inner, mlp_bias),
            ("mlp.up_proj", hidden, inner, mlp_bias),
            ("mlp.down_proj", inner, hidden, mlp_bias),
        ]
        .map(|(name, inputs, outputs, has_bias)| LinearLayer {
            name,
            inputs,
            outputs,
            has_bias,
        })
    }

    /// Of all queries, and of all keys, of a token.
    pub fn widths(&self) -> (usize, usize) {
        let [queries, keys] = [self.num_attention_heads, self.num_key_value_heads];
        (queries * self.head_dim, keys * self.head_dim)
    }

    /// Whether queries and keys are normalized.
    pub fn norms_heads(&self) -> bool {
        self.model_type == Family::Qwen3
    }
}

/// Writes a file of a folder, which is made if it is missing.
pub fn write_json(folder: &Path, name: &str, json: &Value) -> Result<()> {
    let path = folder.join(name);
    let write = || {
        fs::create_dir_all(folder)?;
        let text = serde_json::to_string_pretty(json)?;
        anyhow::Ok(fs::write(&path, text + "\n")?)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// The sliding window and the first layer that has it.
fn window(fields: &Fields, family: Family, layers: usize) -> Result<(Option<usize>, usize)> {
    let window = fields.optional("sliding_window")?;
    let (window, first) = match family {
        Family::Llama => (None, 0),
        Family::Mistral if fields.contains("sliding_window") => (window, 0),
        Family::Mistral => (Some(4096), 0),
        Family::Qwen2 | Family::Qwen3 if !fields.flag("use_sliding_window")? => (None, 0),
        Family::Qwen2 | Family::Qwen3 => (
            Some(window.unwrap_or(4096)),
            fields.optional("max_window_layers")?.unwrap_or(28),
        ),
    };
    let Some(types) = fields.optional::<Vec<String>>("layer_types")? else {
        return Ok((window, first));
    };
    let count = types.len();
    ensure!(
        count == layers,
        "`layer_types` has {count} entries for {layers} layers"
    );
    let full = types.iter().take_while(|kind| *kind == "full_attention");
    let first = full.count();
    let mut others = types.iter().enumerate().skip(first);
    match others.find(|(_, kind)| *kind != "sliding_attention") {
        None if first == layers => Ok((None, 0)),
        None => Ok((window, first)),
        Some((layer, kind)) => bail!(
            "`layer_types` has `{kind}` at {layer}, supported are layers of full_attention and then layers of sliding_attention"
        ),
    }
}

/// The entries of a JSON object. `null` counts as missing.
#[derive(Deserialize)]
pub struct Fields(Map<String, Value>);

impl Fields {
    fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub fn optional<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let value = self.0.get(name).filter(|value| !value.is_null());
        let value = value.map(|value| T::deserialize(value)).transpose();
        value.with_context(|| format!("`{name}`"))
    }

    pub fn required<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let value = self.optional(name)?;
        value.with_context(|| format!("`{name}` is missing"))
    }

    /// False if it is missing.
    pub fn flag(&self, name: &str) -> Result<bool> {
        Ok(self.optional(name)?.unwrap_or(false))
    }

    /// No token, one, or a list of them.
    fn tokens(&self, name: &str) -> Result<Vec<u32>> {
        match self.0.get(name) {
            Some(Value::Array(_)) => self.required(name),
            _ => Ok(self.optional(name)?.into_iter().collect()),
        }
    }

    /// Refuses options that change what a model computes and that are not supported.
    fn check(&self) -> Result<()> {
        let act = self.optional::<String>("hidden_act")?;
        let act = act.as_deref().unwrap_or("silu");
        ensure!(act == "silu", "`hidden_act` is `{act}`; must be `silu`");
        for (name, usual) in [("attention_dropout", 0.), ("partial_rotary_factor", 1.)] {
            let value = self.optional::<f64>(name)?.unwrap_or(usual);
            ensure!(value == usual, "`{name}` is {value}; must be {usual}");
        }
        ensure!(
            self.optional::<Value>("quantization_config")?.is_none(),
            "`quantization_config`: the weights are quantized, which is not supported"
        );
        Ok(())
    }
}
