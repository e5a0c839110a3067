//! What the demonstration begins with: this project's text, and a small model that has learned nothing, in a folder as the hub has them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use candle_core::{DType, Device};
use candle_nn::{VarBuilder, VarMap};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

use headroom_finetune::model::{Config, Decoder, initialize, save_model};

pub const TEXT: &str = "text.txt";
pub const SIGNATURES: &str = "signatures.jsonl";

/// Ends a text.
const END: &str = "<|end|>";
const VOCABULARY: usize = 1024;

/// Writes a text of the documents and a part of the sources, descriptions and signatures of the other sources, and the model.
pub fn write(folder: &Path, untrained: &Path, context: usize, seed: u64) -> Result<()> {
    fs::create_dir_all(untrained)?;
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let (mut texts, mut sources) = (Vec::new(), Vec::new());
    read(&root.join("docs"), "md", &mut texts)?;
    read(&root.join("crates/nn/src"), "rs", &mut texts)?;
    let text = texts.join("\n\n");
    fs::write(folder.join(TEXT), &text)?;
    read(&root.join("src"), "rs", &mut sources)?;
    let pairs = sources.iter().flat_map(|source| signatures(source));
    let lines: String = pairs.map(|pair| format!("{pair}\n")).collect();
    fs::write(folder.join(SIGNATURES), lines)?;
    model(untrained, &text, context, seed)
}

/// Reads the files of this ending in a folder, and in those within it, by name.
fn read(folder: &Path, ending: &str, texts: &mut Vec<String>) -> Result<()> {
    let unread = |path: &Path| format!("cannot read {}", path.display());
    let entries = fs::read_dir(folder).with_context(|| unread(folder))?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    let mut paths = paths.collect::<Result<Vec<PathBuf>>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            read(&path, ending, texts)?;
        } else if path.extension().is_some_and(|own| own == ending) {
            texts.push(fs::read_to_string(&path).with_context(|| unread(&path))?);
        }
    }
    Ok(())
}

/// The first line of documentation of each public item, and its signature where that is one line.
fn signatures(source: &str) -> Vec<Value> {
    let (mut pairs, mut says) = (Vec::new(), None);
    for line in source.lines().map(str::trim) {
        if let Some(first) = line.strip_prefix("/// ") {
            says.get_or_insert(first);
        } else if !line.starts_with("///") && !line.starts_with("#[") {
            let is_whole = line.starts_with("pub ") && line.ends_with(['{', ';', ',', '}']);
            let says = says.take().filter(|_| is_whole);
            let pair = |says| json!({ "prompt": format!("/// {says}\n"), "completion": line });
            pairs.extend(says.map(pair));
        }
    }
    pairs
}

/// Writes config.json, the tokenizer and the parameters: about a million.
fn model(folder: &Path, text: &str, context: usize, seed: u64) -> Result<()> {
    let vocab_size = tokenizer(text, &folder.join("tokenizer.json"))
        .map_err(|error| anyhow!("the tokenizer cannot be trained: {error}"))?;
    let options = json!({ "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END });
    fs::write(folder.join("tokenizer_config.json"), options.to_string())?;
    let config = Config {
        vocab_size,
        max_position_embeddings: 2 * context,
        eos_token_ids: vec![0],
        // 1/√hidden: with smaller ones, no logit of so narrow a model gets large, and an adapter cannot change that.
        initializer_range: 0.09,
        ..Config::default()
    };
    let varmap = VarMap::new();
    let parameters = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    Decoder::new(&config, parameters, None)?;
    let mut rng = StdRng::seed_from_u64(seed);
    initialize(&varmap, config.initializer_range, &mut rng)?;
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
