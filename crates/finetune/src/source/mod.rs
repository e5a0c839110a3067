//! Where a model's files are: in a folder, in the hub's cache, or on the hub.

mod hub;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use candle_headroom::distributed::Group;

use crate::arguments::ModelOptions;

/// Finds the folder of the model. Of several ranks the first one downloads.
pub fn find(options: &ModelOptions, group: &Group) -> Result<PathBuf> {
    let name = options.model.as_deref().unwrap_or_default();
    let path = Path::new(name);
    if path.is_dir() {
        return check(path);
    }
    if path.exists() {
        bail!("{name} is a file: name the folder that holds the model's config.json");
    }
    if !is_id(name) {
        bail!(
            "there is no folder {name}, and it is no id of the hub such as HuggingFaceTB/SmolLM2-135M"
        );
    }
    if group.rank() == 0 {
        hub::fetch(name, options)?;
    }
    group.barrier()?;
    check(&hub::fetch(name, options)?)
}

/// Whether it may be the id of a model: `name`, or `owner/name`.
fn is_id(name: &str) -> bool {
    let is_part = |part: &str| {
        let allows = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !part.is_empty() && !part.starts_with('.') && part.chars().all(allows)
    };
    name.split('/').count() <= 2 && name.split('/').all(is_part)
}

/// Refuses a folder that lacks a file.
fn check(folder: &Path) -> Result<PathBuf> {
    for (files, what) in [
        (&["config.json"][..], "the model's sizes"),
        (
            &["tokenizer.json"],
            "its tokenizer; `AutoTokenizer.from_pretrained(…).save_pretrained(…)` writes it",
        ),
        (
            &["model.safetensors", "model.safetensors.index.json"],
            "its weights; other formats are not read",
        ),
    ] {
        if !files.iter().any(|file| folder.join(file).is_file()) {
            bail!(
                "{} has no {}, {what}",
                folder.display(),
                files.join(" and no ")
            );
        }
    }
    Ok(folder.to_owned())
}
