//! Text encoders, and encoders with a decoder.

use super::{Model, config, forward};
use crate::inputs::tokens;
use candle_transformers::models::*;
use serde_json::json;

pub const MODELS: fn() -> Vec<Model> = || {
    vec![
        Model::new("bert", |vb| {
            let model = bert::BertModel::load(vb, &config(json!({"hidden_act": "gelu"}))?)?;
            forward(move |batch| {
                let ids = tokens(batch)?;
                model.forward(&ids, &ids.zeros_like()?, None)
            })
        })
        .quick(),
    ]
};
