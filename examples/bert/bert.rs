//! Fine-tunes BERT of candle-transformers with a new head, from weights of the Hugging Face hub.
//! Needs the copy of candle-transformers that `scripts/trainable-copy.sh` makes; see the README.
//! `bert FOLDER` reads config.json and model.safetensors; without FOLDER it makes small ones.

use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};
use candle_headroom::checkpoint::load_model;
use candle_headroom::{AdamW, AdaptiveTrainer};
use candle_nn::{Module, VarBuilder, VarMap, linear, loss};
use candle_transformers::models::bert::{BertModel, Config};

/// Writes a small model with random weights in the hub's format.
fn make(folder: PathBuf) -> anyhow::Result<PathBuf> {
    let config = r#"{"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 64, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "max_position_embeddings": 32, "type_vocab_size": 2,
        "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0}"#;
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("config.json"), config)?;
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    BertModel::load(vb, &serde_json::from_str(config)?)?;
    varmap.save(folder.join("model.safetensors"))?;
    Ok(folder)
}

fn main() -> anyhow::Result<()> {
    let given = std::env::args().nth(1).map(PathBuf::from);
    let folder = given.map_or_else(|| make(std::env::temp_dir().join("small-bert")), Ok)?;
    let config: Config = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;

    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let bert = BertModel::load(vb.pp("bert"), &config)?;
    let head = linear(config.hidden_size, 2, vb.pp("head"))?; // new
    load_model(folder)
        .rename("bert.*.gamma", "bert.*.weight") // names of bert-base-uncased
        .rename("bert.*.beta", "bert.*.bias")
        .rename("bert.*", "bert.*") // else the next rule would apply
        .rename("*", "bert.*") // files without the prefix
        .allow_unexpected(["bert.cls.*", "bert.pooler.*", "*.position_ids"])
        .allow_missing(["head.*"])
        .into_parameters(&varmap)?;
    let optimizer = AdamW::builder(&varmap).learning_rate(1e-3).build()?; // 2e-5 for a large BERT
    let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;

    let ids: Vec<u32> = (0..512).map(|i| i * 7 % 61 + 1).collect(); // from your tokenizer
    let y = ids.chunks(8).map(|text| u32::from(text[1] > 30)); // the class of each text
    let y = Tensor::from_iter(y, &Device::Cpu)?;
    let x = Tensor::from_vec(ids, (64, 8), &Device::Cpu)?; // [texts, tokens]
    for _ in 0..15 {
        let report = trainer.step(&(&x, &y), |(x, y), _| {
            let hidden = bert.forward(&x, &x.zeros_like()?, None)?; // or `Some(&mask)` if padded
            loss::cross_entropy(&head.forward(&hidden.get_on_dim(1, 0)?)?, &y)
        })?;
        println!("{report}");
    }
    Ok(())
}
