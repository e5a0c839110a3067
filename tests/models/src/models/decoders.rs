//! Language models that predict the next token. Most return the last token's logits only.

use super::{Model, ONE, config, forward};
use crate::inputs::{tokens, tokens_of};
use candle_core::{DType, IndexOp, Result, Tensor};
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
                let mut cache = llama::Cache::new(false, DType::F32, &config, crate::inputs::device())?;
                model.forward(&tokens(batch)?, 0, &mut cache)
            })
        }),
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
        .remark("its tables of angles are Vars, because it looks for them among the weights"),
        decoder!("mistral", mistral::Model, {}),
        decoder!("mixtral", mixtral::Model, {"num_experts_per_tok": 2, "num_local_experts": 4, "use_flash_attn": false}).detached(GATE),
        decoder!("qwen2", qwen2::ModelForCausalLM, {}),
        decoder!("qwen2_moe", qwen2_moe::Model, {
            "decoder_sparse_step": 1, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
            "num_experts_per_tok": 2, "num_experts": 4, "norm_topk_prob": true,
        })
        .detached(ROUTER),
        decoder!("qwen3", qwen3::ModelForCausalLM, {}),
        decoder!("qwen3_moe", qwen3_moe::ModelForCausalLM, {
            "decoder_sparse_step": 1, "moe_intermediate_size": 32, "num_experts_per_tok": 2, "num_experts": 4,
            "norm_topk_prob": true,
        })
        .detached(GATE),
        decoder!("gemma", gemma::Model, {"hidden_act": null}, false),
        decoder!("gemma2", gemma2::Model, {
            "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 16,
        }, false),
        decoder!("gemma3", gemma3::Model, {
            "rope_local_base_freq": 10000.0, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
            "query_pre_attn_scalar": 16, "sliding_window": 16, "sliding_window_pattern": 2,
        }, false),
        decoder!("recurrent_gemma", recurrent_gemma::Model, {
            "attention_window_size": 64, "conv1d_width": 4, "logits_soft_cap": 30.0, "partial_rotary_factor": 0.5,
            "block_types": ["recurrent", "attention"],
        }),
        Model::new("phi", |vb| {
            let config = config(json!({"hidden_act": "gelu", "partial_rotary_factor": 0.5, "qk_layernorm": false}))?;
            forward(move |batch| phi::Model::new(&config, vb.clone())?.forward(&tokens(batch)?))
        }),
        decoder!("phi3", phi3::Model, {"rope_scaling": null}),
        Model::new("mixformer", |vb| {
            let config = config(json!({
                "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_inner": 128, "n_head": 4, "rotary_dim": 8,
                "activation_function": "gelu", "layer_norm_epsilon": 1e-5, "pad_vocab_size_multiple": 64,
            }))?;
            forward(move |batch| mixformer::MixFormerSequentialForCausalLM::new(&config, vb.clone())?.forward(&tokens(batch)?))
        })
        .remark("phi-1.5"),
        Model::new("falcon", |vb| {
            let config: falcon::Config = config(json!({
                "layer_norm_epsilon": 1e-5, "hidden_dropout": 0.0, "attention_dropout": 0.0, "n_head_kv": null, "alibi": false,
                "new_decoder_architecture": false, "multi_query": true, "parallel_attn": true, "bias": false,
            }))?;
            forward(move |batch| falcon::Falcon::load(vb.clone(), config.clone())?.forward(&tokens(batch)?))
        })
        .batches(1, 1)
        .remark(ONE),
        decoder!("stable_lm", stable_lm::Model, {"partial_rotary_factor": 0.5, "use_qkv_bias": true}),
        decoder!("starcoder2", starcoder2::Model, {"hidden_act": "gelu", "norm_epsilon": 1e-5, "use_bias": true}),
        Model::new("bigcode", |vb| {
            let config = || bigcode::Config {
                vocab_size: 128,
                max_position_embeddings: 64,
                num_hidden_layers: 2,
                hidden_size: 64,
                layer_norm_epsilon: 1e-5,
                n_inner: Some(128),
                num_attention_heads: 4,
                multi_query: true,
                use_cache: false,
            };
            forward(move |batch| bigcode::GPTBigCode::load(vb.clone(), config())?.forward(&tokens(batch)?, 0))
        }),
        decoder!("olmo", olmo::Model, {}),
        decoder!("olmo2", olmo2::Model, {}),
        Model::new("granite", |vb| {
            let config: granite::GraniteConfig = config(json!({}))?;
            let config = config.into_config(false);
            let model = granite::Granite::load(vb, &config)?;
            forward(move |batch| {
                let mut cache = granite::Cache::new(false, DType::F32, &config, crate::inputs::device())?;
                model.forward(&tokens(batch)?, 0, &mut cache)
            })
        }),
        Model::new("granitemoehybrid", |vb| {
            let config: granitemoehybrid::GraniteMoeHybridConfig = config(json!({"layer_types": ["attention", "attention"]}))?;
            let config = config.into_config(false);
            let model = granitemoehybrid::GraniteMoeHybrid::load(vb, &config)?;
            forward(move |batch| {
                let mut cache = granitemoehybrid::GraniteMoeHybridCache::new(false, DType::F32, &config, crate::inputs::device())?;
                model.forward(&tokens(batch)?, 0, &mut cache)
            })
        }),
        decoder!("helium", helium::Model, {"mlp_bias": false}),
        Model::new("chatglm", |vb| {
            let config = chatglm::Config {
                num_layers: 2,
                padded_vocab_size: 128,
                hidden_size: 64,
                ffn_hidden_size: 128,
                kv_channels: 16,
                num_attention_heads: 4,
                seq_length: 64,
                multi_query_group_num: 2,
                ..chatglm::Config::glm3_6b()
            };
            forward(move |batch| chatglm::Model::new(&config, vb.clone())?.forward(&tokens(batch)?))
        }),
        Model::new("glm4", |vb| {
            let config = config(json!({
                "num_layers": 2, "padded_vocab_size": 128, "ffn_hidden_size": 128, "kv_channels": 16, "seq_length": 64,
                "layernorm_epsilon": 1e-5, "rmsnorm": true, "apply_residual_connection_post_layernorm": false,
                "post_layer_norm": true, "add_bias_linear": false, "add_qkv_bias": true, "bias_dropout_fusion": false,
                "multi_query_attention": true, "multi_query_group_num": 2, "apply_query_key_layer_scaling": true,
                "attention_softmax_in_fp32": true, "fp32_residual_connection": false,
            }))?;
            forward(move |batch| glm4::Model::new(&config, vb.clone())?.forward(&tokens(batch)?))
        }),
        decoder!("glm4_new", glm4_new::ModelForCausalLM, {"partial_rotary_factor": 0.5}).batches(1, 1).remark(ONE),
        decoder!("deepseek2", deepseek2::DeepSeekV2, {
            "moe_intermediate_size": 32, "n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
            "first_k_dense_replace": 1, "q_lora_rank": 32, "qk_rope_head_dim": 8, "kv_lora_rank": 16, "v_head_dim": 16,
            "qk_nope_head_dim": 16, "n_group": 1, "topk_group": 1, "rope_scaling": null,
        }),
        decoder!("smollm3", smol::smollm3::ModelForCausalLM, {"no_rope_layer_interval": 2}),
        Model::new("lfm2", |vb| {
            let config: lfm2::Lfm2Config =
                config(json!({"layer_types": ["conv", "full_attention"], "conv_l_cache": 3, "block_multiple_of": 32}))?;
            let config = config.into_config(false);
            let model = lfm2::Model::new(&config, vb)?;
            forward(move |batch| {
                let mut cache = lfm2::Cache::new(false, DType::F32, &config, crate::inputs::device())?;
                model.forward(&tokens(batch)?, 0, &mut cache)
            })
        }),
        decoder!("based", based::Model, {
            "n_embd": 64, "n_inner": 128, "n_layer": 2, "n_head": 4, "layer_norm_epsilon": 1e-5, "rotary_emb_base": 10000.0,
            "alt_mixer_layers": [0], "alt_mixer_2_layers": [1],
            "alt_mixer": {"num_heads": 4, "feature_dim": 8, "feature_map": {"input_dim": 8}},
            "alt_mixer_2": {"num_heads": 4, "window_size": 16},
        })
        .batches(1, 1)
        .remark(ONE),
        Model::new("mamba", |vb| {
            let config: mamba::Config = config(json!({"d_model": 64, "n_layer": 2, "pad_vocab_size_multiple": 8}))?;
            let model = mamba::Model::new(&config, vb)?;
            forward(move |batch| {
                let mut state = mamba::State::new(batch, &config, DType::F32, crate::inputs::device())?;
                one_by_one(batch, |ids| model.forward(ids, &mut state))
            })
        })
        .batches(1, 1)
        .remark(ONE),
        Model::new("mamba2", |vb| {
            let config: mamba2::Config = config(json!({"d_state": 16, "n_groups": 1, "pad_vocab_size_multiple": 8}))?;
            let model = mamba2::Model::new(&config, vb)?;
            forward(move |batch| {
                let mut state = mamba2::State::new(batch, &config, DType::F32, crate::inputs::device())?;
                model.forward_prefill(&tokens(batch)?, &mut state, 16)
            })
        }),
        Model::new("rwkv_v5", |vb| {
            let config = rwkv()?;
            let model = rwkv_v5::Model::new(&config, vb)?;
            forward(move |batch| {
                let mut state = rwkv_v5::State::new(batch, &config, crate::inputs::device())?;
                one_by_one(batch, |ids| model.forward(&ids.unsqueeze(1)?, &mut state))
            })
        })
        .batches(1, 1)
        .remark(ONE),
        Model::new("rwkv_v6", |vb| {
            let config = rwkv()?;
            let model = rwkv_v6::Model::new(&config, vb)?;
            forward(move |batch| {
                let mut state = rwkv_v6::State::new(batch, &config, crate::inputs::device())?;
                one_by_one(batch, |ids| model.forward(&ids.unsqueeze(1)?, &mut state))
            })
        })
        .batches(1, 1)
        .remark(ONE),
    ]
};

/// The files read the router's weights with `to_vec2` and make new tensors of them.
const ROUTER: &[(&str, &str)] = &[(
    "mlp.gate.weight",
    "router, whose weights the file reads out",
)];
const GATE: &[(&str, &str)] = &[("gate.weight", "router, whose weights the file reads out")];

fn rwkv() -> Result<rwkv_v5::Config> {
    config(json!({
        "attention_hidden_size": 64, "head_size": 16, "num_attention_heads": 16, "layer_norm_epsilon": 1e-5, "rescale_every": 6,
    }))
}

/// Feeds a model that takes one token at a time, and returns its last output.
fn one_by_one(batch: usize, mut step: impl FnMut(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let ids = tokens_of(batch, 8)?;
    let mut output = step(&ids.i((.., 0))?)?;
    for at in 1..8 {
        output = step(&ids.i((.., at))?)?;
    }
    Ok(output)
}
