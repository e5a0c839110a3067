//! Text encoders, and encoders with a decoder.

use super::{Model, config, forward};
use crate::inputs::{TOKENS, all, noise, tokens};
use candle_core::DType;
use candle_transformers::models::*;
use serde_json::json;

pub const MODELS: fn() -> Vec<Model> = || {
    vec![
        Model::new("bert", |vb| {
            let model = bert::BertForMaskedLM::load(vb, &config(json!({"hidden_act": "gelu"}))?)?;
            forward(move |batch| {
                let ids = tokens(batch)?;
                model.forward(&ids, &ids.zeros_like()?, None)
            })
        }),
        Model::new("distilbert", |vb| {
            let config = config(
                json!({"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "activation": "gelu"}),
            )?;
            let model = distilbert::DistilBertForMaskedLM::load(vb, &config)?;
            // 1 hides a token.
            forward(move |batch| {
                model.forward(
                    &tokens(batch)?,
                    &all(batch, DType::U8)?
                        .zeros_like()?
                        .reshape((batch, 1, 1, TOKENS))?,
                )
            })
        }),
        Model::new("xlm_roberta", |vb| {
            let config =
                config(json!({"hidden_act": "gelu", "position_embedding_type": "absolute"}))?;
            let model = xlm_roberta::XLMRobertaForMaskedLM::new(&config, vb)?;
            forward(move |batch| {
                let ids = tokens(batch)?;
                model.forward(
                    &ids,
                    &all(batch, DType::F32)?,
                    &ids.zeros_like()?,
                    None,
                    None,
                    None,
                )
            })
        }),
        Model::new("jina_bert", |vb| {
            let config = config(json!({"hidden_act": "gelu", "position_embedding_type": "alibi"}))?;
            let model = jina_bert::BertModel::new(vb, &config)?;
            forward(move |batch| tokens(batch)?.apply(&model))
        }),
        Model::new("nomic_bert", |vb| {
            let config = config(
                json!({"n_embd": 64, "n_head": 4, "n_layer": 2, "n_inner": 128, "n_positions": 64}),
            )?;
            let model = nomic_bert::NomicBertModel::load(vb, &config)?;
            forward(move |batch| {
                let ids = tokens(batch)?;
                model.forward(&ids, Some(&ids.zeros_like()?), None)
            })
        }),
        Model::new("modernbert", |vb| {
            let config = config(json!({
                "global_attn_every_n_layers": 2, "global_rope_theta": 160000.0, "local_attention": 16, "local_rope_theta": 10000.0,
            }))?;
            let model = modernbert::ModernBertForMaskedLM::load(vb, &config)?;
            forward(move |batch| model.forward(&tokens(batch)?, &all(batch, DType::F32)?))
        }),
        Model::new("debertav2", |vb| {
            let config = config(json!({
                "hidden_act": "gelu", "relative_attention": true, "max_relative_positions": -1, "position_biased_input": false,
                "pos_att_type": "p2c|c2p", "position_buckets": 32, "share_att_key": true, "norm_rel_ebd": "layer_norm",
                "conv_kernel_size": null,
            }))?;
            let model = debertav2::DebertaV2Model::load(vb, &config)?;
            forward(move |batch| {
                let ids = tokens(batch)?;
                model.forward(&ids, Some(ids.zeros_like()?), Some(all(batch, DType::U32)?))
            })
        }),
        Model::new("t5", |vb| {
            let config = config(json!({
                "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8,
                "dropout_rate": 0.0, "layer_norm_epsilon": 1e-5, "initializer_factor": 1.0, "is_encoder_decoder": true,
                "feed_forward_proj": "gated-gelu",
            }))?;
            forward(move |batch| {
                let ids = tokens(batch)?;
                t5::T5ForConditionalGeneration::load(vb.clone(), &config)?.forward(&ids, &ids)
            })
        }),
        Model::new("marian", |vb| {
            let config = config_of_marian()?;
            forward(move |batch| {
                let ids = tokens(batch)?;
                let mut model = marian::MTModel::new(&config, vb.clone())?;
                let read = model.encoder().forward(&ids, 0)?;
                model.decode(&ids, &read, 0)
            })
        }),
        Model::new("whisper", |vb| {
            let config: whisper::Config = config(json!({
                "num_mel_bins": 16, "max_source_positions": 32, "d_model": 64, "encoder_attention_heads": 4, "encoder_layers": 2,
                "max_target_positions": 64, "decoder_attention_heads": 4, "decoder_layers": 2,
            }))?;
            forward(move |batch| {
                let mut model = whisper::model::Whisper::load(&vb, config.clone())?;
                let heard = model.encoder.forward(&noise((batch, 16, 64))?, true)?;
                let said = model.decoder.forward(&tokens(batch)?, &heard, true)?;
                model.decoder.final_linear(&said)
            })
        }),
    ]
};

fn config_of_marian() -> candle_core::Result<marian::Config> {
    let mut small = marian::Config::opus_mt_tc_big_fr_en();
    small.vocab_size = 128;
    small.decoder_vocab_size = Some(128);
    small.max_position_embeddings = 64;
    small.d_model = 64;
    (small.encoder_layers, small.decoder_layers) = (2, 2);
    (small.encoder_attention_heads, small.decoder_attention_heads) = (4, 4);
    (small.encoder_ffn_dim, small.decoder_ffn_dim) = (128, 128);
    Ok(small)
}
