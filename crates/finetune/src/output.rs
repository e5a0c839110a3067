//! The folder of the result.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::vocabulary;

/// Makes the folder, and refuses one that holds a model: it would be lost.
pub fn prepare(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let files = [
        "adapter_model.safetensors",
        "model.safetensors",
        "model.safetensors.index.json",
    ];
    if let Some(file) = files.iter().find(|file| folder.join(file).exists()) {
        bail!(
            "{} holds {file}: name another folder by `--output`, or remove it",
            folder.display()
        );
    }
    Ok(())
}

/// Copies the tokenizer's files, so that the result can be used alone.
pub fn copy_tokenizer(from: &Path, to: &Path) -> Result<()> {
    for file in [vocabulary::TOKENIZER].iter().chain(&vocabulary::BESIDE) {
        let (from, to) = (from.join(file), to.join(file));
        if from.is_file() {
            fs::copy(&from, &to)
                .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
        }
    }
    Ok(())
}
