//! Models of images, and of images with text.

use super::{Model, ONE, config, forward};
use crate::inputs::{image, noise, tokens, tokens_of};
use candle_core::{Result, Tensor};
use candle_transformers::models::*;
use serde_json::json;

/// A model that maps an image of this side to logits.
macro_rules! classifier {
    ($name:literal, $side:literal, |$vb:ident| $model:expr) => {
        Model::new($name, |$vb| {
            let model = $model;
            forward(move |batch| image(batch, $side)?.apply(&model))
        })
    };
}

pub const MODELS: fn() -> Vec<Model> = || {
    vec![
        Model::new("vit", |vb| {
            let model = vit::Model::new(&small_vit()?, 10, vb)?;
            forward(move |batch| model.forward(&image(batch, 32)?))
        }),
        classifier!("dinov2", 518, |vb| dinov2::DinoVisionTransformer::new(vb, 1, 32, 2)?).batches(1, 1).remark(ONE),
        classifier!("dinov2reg4", 518, |vb| dinov2reg4::DinoVisionTransformer::new(vb, 1, 32, 2)?).batches(1, 1).remark(ONE),
        classifier!("beit", 384, |vb| beit::BeitVisionTransformer::new(vb, 1, 32, 2)?).batches(1, 1).remark(ONE),
        classifier!("eva2", 448, |vb| eva2::EVA2VisionTransformer::new(vb, 1, 64, 1)?).batches(1, 1).remark(ONE),
        classifier!("convnext", 64, |vb| convnext::convnext(&convnext::Config::atto(), 10, vb)?),
        classifier!("convmixer", 56, |vb| convmixer::c1024_20(10, vb)?)
            .batches(1, 2)
            .slow(),
        classifier!("resnet", 64, |vb| resnet::resnet18(10, vb)?).remark("resnet18"),
        classifier!("repvgg", 64, |vb| repvgg::repvgg(&repvgg::Config::a0(), 10, vb)?).slow(),
        classifier!("efficientnet", 64, |vb| {
            efficientnet::EfficientNet::new(vb, efficientnet::MBConvConfig::b0(), 10)?
        }).slow(),
        classifier!("mobileone", 64, |vb| mobileone::mobileone(&mobileone::Config::s0(), 10, vb)?).slow(),
        classifier!("efficientvit", 224, |vb| efficientvit::efficientvit(&efficientvit::Config::m0(), 10, vb)?).batches(1, 2),
        classifier!("hiera", 224, |vb| {
            hiera::hiera(&config(json!({"channels": 16, "heads": 1, "stages": [1, 1, 1, 1]}))?, 10, vb)?
        })
        .batches(1, 1)
        .remark(ONE)
        .absent(&["blocks.0.proj."]),
        classifier!("segformer", 64, |vb| {
            let config = config(json!({
                "num_channels": 3, "num_encoder_blocks": 4, "depths": [1, 1, 1, 1], "sr_ratios": [8, 4, 2, 1],
                "hidden_sizes": [16, 32, 32, 64], "patch_sizes": [7, 3, 3, 3], "strides": [4, 2, 2, 2],
                "num_attention_heads": [1, 2, 2, 4], "mlp_ratios": [2, 2, 2, 2], "hidden_act": "gelu",
                "decoder_hidden_size": 64,
            }))?;
            segformer::ImageClassificationModel::new(&config, 10, vb)?
        }),
        Model::new("clip", |vb| {
            let mut small = clip::ClipConfig::vit_base_patch32();
            let text = &mut small.text_config;
            (text.vocab_size, text.embed_dim, text.intermediate_size, text.max_position_embeddings) = (128, 64, 128, 32);
            (text.num_hidden_layers, text.num_attention_heads, text.projection_dim) = (2, 4, 32);
            let vision = &mut small.vision_config;
            (vision.embed_dim, vision.intermediate_size, vision.num_hidden_layers, vision.num_attention_heads) = (64, 128, 2, 4);
            (vision.projection_dim, vision.image_size, vision.patch_size) = (32, 32, 8);
            let model = clip::ClipModel::new(vb, &small)?;
            forward(move |batch| both(model.forward(&image(batch, 32)?, &tokens(batch)?)?))
        }),
        Model::new("chinese_clip", |vb| {
            let mut small = chinese_clip::ChineseClipConfig::clip_vit_base_patch16();
            let text = &mut small.text_config;
            (text.vocab_size, text.hidden_size, text.intermediate_size, text.max_position_embeddings) = (128, 64, 128, 64);
            (text.num_hidden_layers, text.num_attention_heads) = (2, 4);
            let vision = &mut small.vision_config;
            (vision.hidden_size, vision.intermediate_size, vision.num_hidden_layers, vision.num_attention_heads) = (64, 128, 2, 4);
            (vision.projection_dim, vision.image_size, vision.patch_size) = (32, 32, 8);
            small.projection_dim = 32;
            let model = chinese_clip::ChineseClipModel::new(vb, &small)?;
            forward(move |batch| {
                let ids = tokens(batch)?;
                both(model.forward(&image(batch, 32)?, &ids, Some(&ids.zeros_like()?), None)?)
            })
        }),
        Model::new("siglip", |vb| {
            let layers = json!({
                "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128,
                "max_position_embeddings": 32, "image_size": 32, "patch_size": 8,
            });
            let model = siglip::Model::new(&config(json!({"text_config": layers, "vision_config": layers}))?, vb)?;
            forward(move |batch| both(model.forward(&image(batch, 32)?, &tokens(batch)?)?))
        }),
        Model::new("blip", |vb| {
            let layers = json!({
                "hidden_size": 64, "encoder_hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                "num_attention_heads": 4, "vocab_size": 128, "max_position_embeddings": 32, "image_size": 32, "patch_size": 8,
                "hidden_act": "gelu", "layer_norm_eps": 1e-5, "projection_dim": 32, "is_decoder": true,
            });
            let config = config(json!({
                "text_config": layers, "vision_config": layers, "projection_dim": 32, "image_text_hidden_size": 32,
            }))?;
            forward(move |batch| {
                let mut model = blip::BlipForConditionalGeneration::new(&config, vb.clone())?;
                let seen = image(batch, 32)?.apply(model.vision_model())?;
                model.text_decoder().forward(&tokens(batch)?, &seen)
            })
        })
        .batches(1, 1)
        .remark(ONE),
        Model::new("trocr", |vb| {
            let vision = small_vit()?;
            let text = trocr::TrOCRConfig {
                vocab_size: 128,
                d_model: 64,
                cross_attention_hidden_size: 64,
                decoder_layers: 2,
                decoder_attention_heads: 4,
                decoder_ffn_dim: 128,
                max_position_embeddings: 64,
                ..Default::default()
            };
            forward(move |batch| {
                let mut model = trocr::TrOCRModel::new(&vision, &text, vb.clone())?;
                let seen = model.encoder().forward(&image(batch, 32)?)?;
                // As many tokens as patches: candle's mask applies to both.
                model.decode(&tokens_of(batch, 17)?, &seen, 0)
            })
        }),
        Model::new("pixtral_vision", |vb| {
            let config = config(json!({"image_size": 32, "patch_size": 8, "hidden_act": "gelu"}))?;
            let model = pixtral::vision_model::Model::new(&config, vb)?;
            forward(move |batch| image(batch, 32)?.apply(&model))
        }),
        Model::new("moondream", |vb| {
            let config = config(json!({
                "phi_config": {
                    "vocab_size": 128, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_inner": 128, "n_head": 4,
                    "rotary_dim": 8, "activation_function": "gelu", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": false,
                    "pad_vocab_size_multiple": 64,
                },
                "vision_config": {
                    "image_embedding_dim": 1152, "model_dim": 64, "hidden_dim": 128, "hidden_features": 128, "embed_len": 4,
                    "embed_dim": 1152, "num_blocks": 1, "num_heads": 16, "act": "gelu",
                },
            }))?;
            forward(move |batch| {
                let mut model = moondream::Model::new(&config, vb.clone())?;
                let seen = image(batch, 28)?.apply(model.vision_encoder())?;
                let ids = tokens(batch)?;
                model.text_model().forward_with_img(&ids.narrow(1, 0, 1)?, &ids, &seen)
            })
        })
        .batches(1, 1)
        .remark(ONE),
    ]
};

fn small_vit() -> Result<vit::Config> {
    config(
        json!({"hidden_act": "gelu", "image_size": 32, "patch_size": 8, "num_channels": 3, "qkv_bias": true}),
    )
}

/// The similarities of a batch's texts and images depend on all of its samples: the loss weights them, lest text and image be alike.
fn both((text, image): (Tensor, Tensor)) -> Result<Tensor> {
    (&text * noise(text.shape())?)?.broadcast_add(&image)
}
