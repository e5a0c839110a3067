//! Runs two of candle-transformers' models, as published, under a `LayerMemory`, and checks the paths of their layers and what they hold.
//! scripts/try-layers.sh builds and runs it.

use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::layers::{LayerMemory, LayerReport, RowKind};
use candle_headroom::{DeviceMemory, TrackingAllocator};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::{bert, llama};
use serde_json::json;

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

const TOKENS: usize = 64;

fn main() -> anyhow::Result<()> {
    let memory = DeviceMemory::host().open()?;
    let layers = LayerMemory::new(&memory);
    layers.install()?;

    let config: llama::LlamaConfig = serde_json::from_value(json!({
        "hidden_size": 64, "intermediate_size": 128, "vocab_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "rms_norm_eps": 1e-5, "max_position_embeddings": TOKENS, "tie_word_embeddings": false,
    }))?;
    let config = config.into_config(false);
    let model = llama::Llama::load(parameters(), &config)?;
    let mut cache = llama::Cache::new(false, DType::F32, &config, &Device::Cpu)?;
    let tokens = tokens()?;
    let report = twice(&layers, || model.forward(&tokens, 0, &mut cache))?;
    // The `Linear`s and `RmsNorm`s of candle-transformers have spans too, as have the embedding and the head outside of the blocks.
    let expected = ["block.0.attn", "block.1.attn.attn-rot", "block.2.mlp", "block.2.mlp.linear.2", "block.*.rms-norm.*"];
    check("llama", &report, &expected)?;

    let config: bert::Config = serde_json::from_value(json!({
        "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
        "hidden_act": "gelu", "hidden_dropout_prob": 0., "max_position_embeddings": TOKENS, "type_vocab_size": 2,
        "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0,
    }))?;
    let model = bert::BertModel::load(parameters(), &config)?;
    let types = tokens.zeros_like()?;
    let report = twice(&layers, || model.forward(&tokens, &types, None))?;
    let expected = ["model.embeddings", "model.encoder.layer.0.attn.self-attn.softmax", "model.encoder.layer.1.inter.hidden-act"];
    check("bert", &report, &expected)?;
    Ok(())
}

fn parameters() -> VarBuilder<'static> {
    VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu)
}

fn tokens() -> Result<Tensor> {
    Tensor::from_iter((0..4 * TOKENS).map(|i| (i * 31 % 96) as u32), &Device::Cpu)?.reshape((4, TOKENS))
}

/// The report of the second pass, whose outputs are held: the first one begins threads.
fn twice(layers: &LayerMemory, mut forward: impl FnMut() -> Result<Tensor>) -> Result<LayerReport> {
    layers.measure(&mut forward)?;
    let output = layers.measure(&mut forward)?;
    let report = layers.report();
    drop(output);
    Ok(report)
}

/// Each expected path is there, folded or not, and layers hold almost all of what the pass added.
fn check(model: &str, report: &LayerReport, expected: &[&str]) -> anyhow::Result<()> {
    println!("{model}: {report}\n");
    let names = |report: &LayerReport| -> Vec<String> {
        let layers = report.rows.iter().filter(|row| row.kind == RowKind::Layer);
        layers.map(|row| row.name()).collect()
    };
    let mut known = names(report);
    known.extend(names(&report.folded()));
    for path in expected {
        anyhow::ensure!(known.iter().any(|name| name == path), "{model}: no layer `{path}` in {known:#?}");
    }
    let bytes = |kind| report.rows.iter().filter(|row| row.kind == kind).filter_map(|row| row.at_peak).sum::<u64>();
    let (layers, outside) = (bytes(RowKind::Layer), bytes(RowKind::Phase));
    anyhow::ensure!(layers > 4 * outside, "{model}: {layers} bytes in layers, {outside} outside");
    println!("figure: layers/{model}_paths = {} paths\n", known.len());
    Ok(())
}
