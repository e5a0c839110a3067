//! A small model that has learned nothing, in a folder as the hub has them.

use std::path::Path;

use anyhow::{Result, anyhow};
use candle_core::{DType, Device};
use candle_nn::{VarBuilder, VarMap};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

use headroom_finetune::model::{Config, Decoder, initialize, save_model};

/// Ends a text.
const END: &str = "<|end|>";
const VOCABULARY: usize = 1024;

/// Writes config.json, the tokenizer and the parameters: about a million.
pub fn write(folder: &Path, text: &str, context: usize, seed: u64) -> Result<()> {
    let vocabulary = tokenizer(text, &folder.join("tokenizer.json"))
        .map_err(|error| anyhow!("the tokenizer cannot be trained: {error}"))?;
    let options = json!({ "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END });
    std::fs::write(folder.join("tokenizer_config.json"), options.to_string())?;
    let config = Config {
        vocab_size: vocabulary,
        max_position_embeddings: 2 * context,
        tie_word_embeddings: true,
        eos_token_ids: vec![0],
        // 1/√hidden: with smaller ones, no logit of so narrow a model gets large, and an adapter cannot change that.
        initializer_range: 0.09,
        ..Config::default()
    };
    let varmap = VarMap::new();
    Decoder::new(
        &config,
        VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu),
        None,
    )?;
    initialize(
        &varmap,
        config.initializer_range,
        &mut StdRng::seed_from_u64(seed),
    )?;
    save_model(folder, &config, &varmap)
}

/// Trains a tokenizer on bytes, as those of GPT-2 and Llama 3 are. Returns the number of its tokens.
fn tokenizer(text: &str, path: &Path) -> tokenizers::Result<usize> {
    let trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(VOCABULARY)
        .special_tokens(vec![AddedToken::from(END, true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect());
    let mut tokenizer = Tokenizer::new(BPE::default());
    tokenizer
        .with_pre_tokenizer(Some(ByteLevel::new(false, true, true)))
        .with_decoder(Some(ByteLevel::default()))
        .train(
            &mut TrainerWrapper::BpeTrainer(trainer.build()),
            text.lines(),
        )?
        .save(path, true)?;
    Ok(tokenizer.get_vocab_size(true))
}
