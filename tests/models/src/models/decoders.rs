//! Language models that predict the next token. Most return the last token's logits only.

use super::{Model, config, forward};
use crate::inputs::tokens;
use candle_core::{DType, Device};
use candle_transformers::models::*;
use serde_json::json;

/// A model with `new(&config, vb)` and `forward(&ids, 0)`. Keys and values of the last call are kept in the model, so each call makes
/// it anew, from the same Vars.
macro_rules! decoder {
    ($name:literal, $model:path, $config:tt $(, $first:expr)?) => {
        Model::new($name, |vb| {
            type Decoder = $model;
            let config = config(json!($config))?;
            forward(move |batch| Decoder::new($($first,)? &config, vb.clone())?.forward(&tokens(batch)?, 0))
        })
    };
}

pub const MODELS: fn() -> Vec<Model> = || {
    vec![
        Model::new("llama", |vb| {
            let config: llama::LlamaConfig = config(json!({}))?;
            let config = config.into_config(false);
            let model = llama::Llama::load(vb, &config)?;
            forward(move |batch| {
                let mut cache = llama::Cache::new(false, DType::F32, &config, &Device::Cpu)?;
                model.forward(&tokens(batch)?, 0, &mut cache)
            })
        })
        .quick(),
        Model::new("llama2_c", |vb| {
            let config = llama2_c::Config {
                dim: 64,
                hidden_dim: 128,
                n_layers: 2,
                n_heads: 4,
                n_kv_heads: 2,
                vocab_size: 128,
                seq_len: 64,
                norm_eps: 1e-5,
            };
            let mut cache = llama2_c::Cache::new(false, &config, vb.pp("rot"))?;
            let model = llama2_c::Llama::load(vb, config)?;
            forward(move |batch| model.forward(&tokens(batch)?, 0, &mut cache))
        })
        .unused(&[("freq_cis_", "")]),
        decoder!("mistral", mistral::Model, {}),
        decoder!("mixtral", mixtral::Model, {"num_experts_per_tok": 2, "num_local_experts": 4, "use_flash_attn": false}),
        decoder!("qwen2", qwen2::ModelForCausalLM, {}).quick(),
        decoder!("qwen2_moe", qwen2_moe::Model, {
            "decoder_sparse_step": 1, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
            "num_experts_per_tok": 2, "num_experts": 4, "norm_topk_prob": true,
        }),
        decoder!("qwen3", qwen3::ModelForCausalLM, {}).quick(),
        decoder!("gemma", gemma::Model, {"hidden_act": "gelu"}, false),
        decoder!("gemma2", gemma2::Model, {
            "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 16,
        }, false),
        decoder!("gemma3", gemma3::Model, {
            "rope_local_base_freq": 10000.0, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
            "query_pre_attn_scalar": 16, "sliding_window": 16, "sliding_window_pattern": 2,
        }, false),
    ]
};
