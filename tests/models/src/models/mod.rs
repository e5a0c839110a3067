//! The models, each on a small configuration.

mod decoders;
mod encoders;
mod generators;
mod vision;

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

/// Maps a batch size to the model's output.
pub type Forward = Box<dyn FnMut(usize) -> Result<Tensor>>;

pub struct Model {
    pub name: &'static str,
    pub build: fn(VarBuilder<'static>) -> Result<Forward>,
    /// Batch sizes between which memory is measured; equal if only that one is possible.
    pub batches: (usize, usize),
    /// Beginnings of names that the weights do not have: some models tell by them which layers there are.
    pub absent: &'static [&'static str],
    /// Vars that the forward pass does not use, by the beginning of a part of their path, and what they belong to.
    pub unused: &'static [(&'static str, &'static str)],
    /// Vars that it uses, but cuts off by itself, in the same way.
    pub detached: &'static [(&'static str, &'static str)],
    /// What the one line of Cargo.toml does not make trainable, if there is something.
    pub impossible: Option<&'static str>,
    /// Its output is random, so gradients of two runs cannot be compared.
    pub random: bool,
    pub remark: &'static str,
    /// Takes seconds, and is left out of `quick`.
    pub slow: bool,
}

impl Model {
    pub const fn new(
        name: &'static str,
        build: fn(VarBuilder<'static>) -> Result<Forward>,
    ) -> Self {
        Self {
            name,
            build,
            batches: (2, 6),
            absent: &[],
            unused: &[],
            detached: &[],
            impossible: None,
            random: false,
            remark: "",
            slow: false,
        }
    }

    const fn batches(self, small: usize, large: usize) -> Self {
        Self {
            batches: (small, large),
            ..self
        }
    }

    const fn absent(self, absent: &'static [&'static str]) -> Self {
        Self { absent, ..self }
    }

    const fn unused(self, unused: &'static [(&'static str, &'static str)]) -> Self {
        Self { unused, ..self }
    }

    const fn detached(self, detached: &'static [(&'static str, &'static str)]) -> Self {
        Self { detached, ..self }
    }

    #[allow(dead_code, reason = "there is no such model now")]
    const fn impossible(self, reason: &'static str) -> Self {
        Self {
            impossible: Some(reason),
            ..self
        }
    }

    const fn random(self) -> Self {
        Self {
            random: true,
            ..self
        }
    }

    const fn remark(self, remark: &'static str) -> Self {
        Self { remark, ..self }
    }

    const fn slow(self) -> Self {
        Self { slow: true, ..self }
    }

    /// Why the forward pass does not use this Var.
    pub fn why_unused(&self, var: &str) -> Option<&'static str> {
        if is_statistic(var) {
            return Some("running statistics of BatchNorm");
        }
        reason(self.unused, var)
    }

    /// Why this Var receives no gradient, though the forward pass uses it.
    pub fn why_detached(&self, var: &str) -> Option<&'static str> {
        reason(self.detached, var)
    }
}

fn reason(parts: &[(&str, &'static str)], var: &str) -> Option<&'static str> {
    let begins = |part: &str| var.starts_with(part) || var.contains(&format!(".{part}"));
    parts
        .iter()
        .find(|(part, _)| begins(part))
        .map(|(_, reason)| *reason)
}

pub fn is_statistic(var: &str) -> bool {
    var.ends_with(".running_mean") || var.ends_with(".running_var")
}

const ONE: &str = "takes a batch of 1 only";

pub fn all() -> Vec<Model> {
    [
        decoders::MODELS,
        encoders::MODELS,
        vision::MODELS,
        generators::MODELS,
    ]
    .into_iter()
    .flat_map(|models| models())
    .collect()
}

pub fn named(name: &str) -> anyhow::Result<Model> {
    all()
        .into_iter()
        .find(|model| model.name == name)
        .ok_or_else(|| anyhow::anyhow!("no model is called `{name}`: see `list`"))
}

fn forward(with: impl FnMut(usize) -> Result<Tensor> + 'static) -> Result<Forward> {
    Ok(Box::new(with))
}

/// Reads a configuration: the fields that most of them share, and those of `own`.
fn config<C: serde::de::DeserializeOwned>(own: serde_json::Value) -> Result<C> {
    let mut fields = serde_json::json!({
        "vocab_size": crate::inputs::VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
        "rms_norm_eps": 1e-5,
        "layer_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "sliding_window": 64,
        "use_sliding_window": false,
        "max_window_layers": 2,
        "tie_word_embeddings": false,
        "attention_bias": false,
        "initializer_range": 0.02,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 1,
        "use_cache": false,
    });
    if let (Some(fields), serde_json::Value::Object(own)) = (fields.as_object_mut(), own) {
        fields.extend(own);
    }
    serde_json::from_value(fields).map_err(candle_core::Error::wrap)
}
