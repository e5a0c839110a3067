//! Models that generate images and sounds.

use super::{Model, config, forward};
use crate::inputs::{noise, tokens_of};
use candle_core::{DType, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::*;
use serde_json::json;

pub const MODELS: fn() -> Vec<Model> = || {
    vec![
        Model::new("stable_diffusion_unet", |vb| {
            use stable_diffusion::unet_2d::{BlockConfig, UNet2DConditionModel, UNet2DConditionModelConfig};
            let block = |out_channels, use_cross_attn| BlockConfig { out_channels, use_cross_attn, attention_head_dim: 4 };
            let config = UNet2DConditionModelConfig {
                blocks: vec![block(32, Some(1)), block(64, None)],
                layers_per_block: 1,
                norm_num_groups: 8,
                cross_attention_dim: 32,
                ..Default::default()
            };
            let model = UNet2DConditionModel::new(vb, 4, 4, false, config)?;
            forward(move |batch| model.forward(&noise((batch, 4, 16, 16))?, 500.0, &noise((batch, 8, 32))?))
        }),
        Model::new("stable_diffusion_vae", |vb| {
            let model = autoencoder(vb)?;
            forward(move |batch| model.decode(&noise((batch, 4, 8, 8))?))
        })
        .unused(&[("encoder.", "encoder"), ("quant_conv", "encoder")])
        .remark("its decoder"),
        Model::new("stable_diffusion_vae_encoder", |vb| {
            let model = autoencoder(vb)?;
            forward(move |batch| model.encode(&noise((batch, 3, 16, 16))?)?.sample())
        })
        .unused(&[("decoder.", "decoder"), ("post_quant_conv", "decoder")])
        .random()
        .remark("its output is a sample that takes no seed, so its gradients are not compared"),
        Model::new("wuerstchen_prior", |vb| {
            let model = wuerstchen::prior::WPrior::new(4, 64, 32, 16, 2, 4, false, vb)?;
            forward(move |batch| {
                let step = Tensor::full(0.5f32, batch, crate::inputs::device())?;
                // It divides by a number that may be near 0.
                model.forward(&noise((batch, 4, 8, 8))?, &step, &noise((batch, 8, 32))?)?.tanh()
            })
        }),
        Model::new("flux", |vb| {
            let config = flux::model::Config {
                in_channels: 16,
                vec_in_dim: 32,
                context_in_dim: 32,
                hidden_size: 64,
                mlp_ratio: 2.0,
                num_heads: 2,
                depth: 1,
                depth_single_blocks: 1,
                axes_dim: vec![8, 12, 12],
                theta: 10_000,
                qkv_bias: true,
                guidance_embed: true,
            };
            let model = flux::model::Flux::new(&config, vb)?;
            forward(move |batch| {
                let (pixels, text) = (noise((batch, 16, 16))?, noise((batch, 8, 32))?);
                let (at, step) = (noise((batch, 16, 3))?, Tensor::full(0.5f32, batch, crate::inputs::device())?);
                let text_at = noise((batch, 8, 3))?.zeros_like()?;
                flux::WithForward::forward(&model, &pixels, &at, &text, &text_at, &step, &noise((batch, 32))?, Some(&step))
            })
        }),
        Model::new("flux_autoencoder", |vb| {
            let config = flux::autoencoder::Config {
                resolution: 32,
                in_channels: 3,
                ch: 32,
                out_ch: 3,
                ch_mult: vec![1, 2],
                num_res_blocks: 1,
                z_channels: 4,
                scale_factor: 0.3611,
                shift_factor: 0.1159,
            };
            let encoder = flux::autoencoder::Encoder::new(&config, vb.pp("encoder"))?;
            let decoder = flux::autoencoder::Decoder::new(&config, vb.pp("decoder"))?;
            // The mean and the logarithm of the variance, added in place of a sample.
            forward(move |batch| {
                let halves = noise((batch, 3, 16, 16))?.apply(&encoder)?.chunk(2, 1)?;
                (&halves[0] + &halves[1])?.apply(&decoder)
            })
        }),
        Model::new("mmdit", |vb| {
            let config = mmdit::model::Config {
                patch_size: 2,
                in_channels: 4,
                out_channels: 4,
                depth: 2,
                head_size: 32,
                adm_in_channels: 32,
                pos_embed_max_size: 8,
                context_embed_size: 32,
                frequency_embedding_size: 32,
            };
            let model = mmdit::model::MMDiT::new(&config, false, vb.to_dtype(DType::F16))?;
            forward(move |batch| {
                let half = |tensor: Tensor| tensor.to_dtype(DType::F16);
                let step = Tensor::full(0.5f32, batch, crate::inputs::device())?;
                let (pixels, label, text) = (noise((batch, 4, 8, 8))?, noise((batch, 32))?, noise((batch, 8, 32))?);
                model.forward(&half(pixels)?, &step, &half(label)?, &half(text)?, None)?.to_dtype(DType::F32)
            })
        })
        .remark("Stable Diffusion 3; in f16, to which it casts its time steps"),
        Model::new("encodec", |vb| {
            let config = encodec::Config { hidden_size: 16, num_filters: 4, upsampling_ratios: vec![4, 2], ..Default::default() };
            let encoder = encodec::Encoder::new(&config, vb.pp("encoder"))?;
            let decoder = encodec::Decoder::new(&config, vb.pp("decoder"))?;
            forward(move |batch| noise((batch, 1, 64))?.apply(&encoder)?.apply(&decoder))
        })
        .remark("without its quantizer"),
        Model::new("mimi", |vb| {
            let mut model = small_mimi(vb)?;
            forward(move |batch| {
                model.reset_state();
                model.encode_pre_quantize(&noise((batch, 1, 128))?)
            })
        })
        .unused(&[("decoder", "decoder"), ("upsample.", "decoder"), ("quantizer.", "quantizer, which chooses codes by their index")])
        .remark("its encoder"),
        Model::new("mimi_decoder", |vb| {
            let mut model = small_mimi(vb)?;
            forward(move |batch| {
                model.reset_state();
                model.decode(&tokens_of(batch, 32)?.reshape((batch, 4, 8))?)
            })
        })
        .unused(&[("encoder", "encoder"), ("downsample.", "encoder"), ("input_proj", "encoder"), ("initialized", "training of the codebooks")])
        .remark("calls Tensor::conv_transpose1d itself"),
        Model::new("dac", |vb| {
            let encoder = dac::Encoder::new(8, &[2, 4], 16, vb.pp("encoder"))?;
            let decoder = dac::Decoder::new(16, 32, &[4, 2], 1, vb.pp("decoder"))?;
            forward(move |batch| noise((batch, 1, 64))?.apply(&encoder)?.apply(&decoder))
        }),
        Model::new("snac", |vb| {
            let config: snac::Config = config(json!({
                "sampling_rate": 24000, "encoder_dim": 8, "encoder_rates": [2, 4], "decoder_dim": 32, "decoder_rates": [4, 2],
                "attn_window_size": null, "codebook_size": 128, "codebook_dim": 8, "vq_strides": [2, 1], "noise": false,
                "depthwise": false,
            }))?;
            let model = snac::Model::new(&config, vb)?;
            forward(move |batch| noise((batch, 1, 64))?.apply(&model.encoder)?.apply(&model.decoder))
        })
        .unused(&[("quantizer.", "quantizer, which chooses codes by their index")]),
        Model::new("parler_tts", |vb| {
            let config = config(json!({
                "ffn_dim": 128, "activation_function": "gelu", "scale_embedding": false, "num_codebooks": 2, "vocab_size": 128,
                "num_cross_attention_key_value_heads": null, "rope_embeddings": false, "num_key_value_heads": null,
            }))?;
            forward(move |batch| {
                let mut model = parler_tts::Decoder::new(&config, vb.clone())?;
                let codes = tokens_of(batch, 32)?.reshape((batch, 2, 16))?;
                let logits = model.forward(&codes, None, None, &noise((batch, 8, 64))?, None, 0)?;
                Tensor::cat(&logits, 1)
            })
        })
        .batches(1, 1)
        .remark("its decoder; takes a batch of 1 only"),
    ]
};

fn autoencoder(vb: VarBuilder) -> Result<stable_diffusion::vae::AutoEncoderKL> {
    use stable_diffusion::vae::{AutoEncoderKL, AutoEncoderKLConfig};
    let config = AutoEncoderKLConfig {
        block_out_channels: vec![16, 32],
        norm_num_groups: 8,
        ..Default::default()
    };
    AutoEncoderKL::new(vb, 3, 3, config)
}

fn small_mimi(vb: VarBuilder) -> Result<mimi::encodec::Encodec> {
    let mut small = mimi::Config::v0_1(Some(4));
    (
        small.seanet.dimension,
        small.seanet.n_filters,
        small.seanet.ratios,
    ) = (32, 4, vec![4, 2]);
    (
        small.transformer.d_model,
        small.transformer.num_heads,
        small.transformer.num_layers,
    ) = (32, 4, 1);
    (
        small.transformer.dim_feedforward,
        small.transformer.max_seq_len,
        small.transformer.context,
    ) = (64, 256, 64);
    (small.quantizer_bins, small.quantizer_dim) = (128, 16);
    (small.sample_rate, small.frame_rate) = (160.0, 10.0);
    mimi::encodec::Encodec::new(small, vb)
}
