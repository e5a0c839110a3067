//! Text as tokens, and back.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use tokenizers::{Encoding, Tokenizer};

use headroom_finetune::model::Config;

pub const TOKENIZER: &str = "tokenizer.json";

/// Files that not every model has, which tell how its text is made. Training leaves them as they are.
pub const BESIDE: [&str; 5] = [
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "generation_config.json",
    "chat_template.jinja",
];

pub struct Vocabulary {
    /// The model's folder, which may have a chat template too.
    pub folder: PathBuf,
    tokenizer: Tokenizer,
    /// What the tokenizer puts before each text, such as `<s>`.
    pub begin: Vec<u32>,
    /// Tokens that end a text; the first one is learned.
    pub ends: Vec<u32>,
}

impl Vocabulary {
    /// Reads the tokenizer of a model.
    pub fn open(folder: &Path, config: &Config) -> Result<Self> {
        let path = folder.join(TOKENIZER);
        let unread = |error| {
            let hint = "which `AutoTokenizer.from_pretrained(…).save_pretrained(…)` writes";
            anyhow!("cannot read {}, {hint}: {error}", path.display())
        };
        let mut tokenizer = Tokenizer::from_file(&path).map_err(unread)?;
        // Settings of whoever saved it.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(unread)?;
        let largest = tokenizer.get_vocab(true).into_values().max().unwrap_or(0);
        ensure!(
            (largest as usize) < config.vocab_size,
            "{} has tokens up to {largest}, the model in {} has {}: take the tokenizer of this model",
            path.display(),
            folder.display(),
            config.vocab_size
        );
        let mut own = Self {
            folder: folder.to_owned(),
            tokenizer,
            begin: Vec::new(),
            ends: config.eos_token_ids.clone(),
        };
        own.begin = own.beginning()?;
        Ok(own)
    }

    /// What the tokenizer's own template puts before a text.
    fn beginning(&self) -> Result<Vec<u32>> {
        let plain = self.encode("a")?;
        let whole = self.encoding("a", true)?;
        let whole = whole.get_ids();
        let mut parts = whole.windows(plain.len().max(1));
        let before = parts.position(|ids| ids == plain);
        Ok(whole[..before.unwrap_or(0)].to_vec())
    }

    /// The tokens of a text alone.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.encoding(text, false)?.get_ids().to_vec())
    }

    fn encoding(&self, text: &str, with_template: bool) -> Result<Encoding> {
        let encoding = self.tokenizer.encode(text, with_template);
        encoding.map_err(|error| anyhow!("{error}"))
    }

    /// The tokens of a text with what begins and ends each, and the number of those that hold nothing of what follows the prompt. Both are
    /// encoded together, as the model has seen them.
    pub fn tokens_of(&self, prompt: Option<&str>, text: &str) -> Result<(Vec<u32>, usize)> {
        let joined = prompt.map(|prompt| format!("{prompt}{text}"));
        let encoding = self.encoding(joined.as_deref().unwrap_or(text), false)?;
        let length = prompt.unwrap_or_default().len();
        let ends = encoding.get_offsets().iter().map(|(_, end)| *end);
        let before = ends.take_while(|end| *end <= length).count();
        // Any of several ends a text; the first one is learned.
        let end = self.ends.get(..1).unwrap_or_default();
        let tokens = [&self.begin, encoding.get_ids(), end].concat();
        Ok((tokens, self.begin.len() + before))
    }

    /// The tokens of a text as it stands, special ones included, and those of its parts, in bytes. A token that begins before a part and ends
    /// in it belongs to it.
    pub fn tokens_of_parts(
        &self,
        text: &str,
        parts: &[Range<usize>],
    ) -> Result<(Vec<u32>, Vec<Range<usize>>)> {
        let encoding = self.encoding(text, false)?;
        let ends: Vec<_> = encoding.get_offsets().iter().map(|(_, end)| *end).collect();
        let until = |byte: usize| ends.partition_point(|end| *end <= byte);
        // Nothing comes before the first token.
        let tokens = parts
            .iter()
            .map(|part| until(part.start).max(1)..until(part.end));
        let tokens = tokens.filter(|tokens| !tokens.is_empty()).collect();
        Ok((encoding.get_ids().to_vec(), tokens))
    }

    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let text = self.tokenizer.decode(tokens, true);
        text.map_err(|error| anyhow!("{error}"))
    }
}

/// Copies the tokenizer's files from one folder to another.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    for file in [TOKENIZER].iter().chain(&BESIDE) {
        let (from, to) = (from.join(file), to.join(file));
        if from.is_file() {
            fs::copy(&from, &to)
                .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
        }
    }
    Ok(())
}
