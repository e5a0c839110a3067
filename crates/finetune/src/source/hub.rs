//! Models of the Hugging Face hub.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use serde::Deserialize;

use crate::arguments::ModelOptions;
use crate::vocabulary;
use headroom_finetune::model::check_names;

const INDEX: &str = "model.safetensors.index.json";
const WEIGHTS: &str = "model.safetensors";

/// The part of a sharded model's index that is read.
#[derive(Deserialize)]
struct Index {
    weight_map: std::collections::BTreeMap<String, String>,
}

/// Returns the folder of a model in the hub's cache, and fills it first where files are missing.
pub fn fetch(id: &str, options: &ModelOptions) -> Result<PathBuf> {
    let repo = || Repo::with_revision(id.to_owned(), RepoType::Model, options.revision.clone());
    let cached = Cache::from_env().repo(repo());
    let find = |file: &str| {
        // A commit has no entry among the names of revisions where Python has filled the cache.
        let of_commit = || cached.pointer_path(&options.revision).join(file);
        let found = cached.get(file);
        found.or_else(|| Some(of_commit()).filter(|path| path.is_file()))
    };
    if let Some(folder) = complete(find)? {
        return Ok(folder);
    }
    if options.offline {
        bail!(
            "{id} at {} is not in the hub's cache {}: leave out `--offline`, or download it to a folder and name that by `--model`",
            options.revision,
            Cache::from_env().path().display()
        );
    }
    let mut api = ApiBuilder::from_env().with_progress(false);
    let endpoint = std::env::var("HF_ENDPOINT");
    if endpoint.is_ok_and(|endpoint| !endpoint.to_ascii_lowercase().starts_with("https://")) {
        // Whoever listens would get it; the one in the hub's cache too.
        api = api.with_token(None);
    } else if let Ok(token) = std::env::var("HF_TOKEN") {
        api = api.with_token(Some(token));
    }
    let api = api
        .build()
        .context("cannot use the Hugging Face hub")?
        .repo(repo());
    let unreachable = || {
        format!(
            "cannot download {id} at {} from the Hugging Face hub: check the name and the network, or name a folder by `--model`",
            options.revision
        )
    };
    download(&api).with_context(unreachable)?;
    complete(find)?.with_context(unreachable)
}

/// The folder of a model whose files are all there.
fn complete(find: impl Fn(&str) -> Option<PathBuf>) -> Result<Option<PathBuf>> {
    let (Some(config), Some(_)) = (find("config.json"), find(vocabulary::TOKENIZER)) else {
        return Ok(None);
    };
    let has_weights = match find(INDEX) {
        Some(index) => shards(&index)?.iter().all(|shard| find(shard).is_some()),
        None => find(WEIGHTS).is_some(),
    };
    Ok(config.parent().filter(|_| has_weights).map(Path::to_owned))
}

fn download(api: &ApiRepo) -> Result<()> {
    for file in ["config.json", vocabulary::TOKENIZER] {
        api.get(file)?;
    }
    for file in vocabulary::BESIDE {
        optional(api.get(file))?;
    }
    match optional(api.get(INDEX))? {
        Some(index) => {
            for shard in shards(&index)? {
                api.get(&shard)?;
            }
        }
        None => drop(api.get(WEIGHTS)?),
    }
    Ok(())
}

/// `None` for a file that the hub does not have.
fn optional(file: Result<PathBuf, ApiError>) -> Result<Option<PathBuf>> {
    match file {
        Ok(file) => Ok(Some(file)),
        Err(ApiError::RequestError(error)) if error.to_string().ends_with("404") => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The files of a sharded model.
fn shards(index: &Path) -> Result<Vec<String>> {
    let read = || -> Result<Index> { Ok(serde_json::from_reader(File::open(index)?)?) };
    let index = read().with_context(|| format!("cannot read {}", index.display()))?;
    let mut files: Vec<_> = index.weight_map.into_values().collect();
    files.sort();
    files.dedup();
    check_names(&files)?;
    Ok(files)
}
