//! Where a model's files are: in a folder, in the hub's cache, or on the Hugging Face hub.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use candle_headroom::distributed::Group;
use hf_hub::api::sync::{ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};

use crate::arguments::ModelOptions;
use crate::vocabulary;
use headroom_finetune::model::{INDEX, WEIGHTS, shards};

/// Finds the folder of the model, on the hub with its weights or without. Of several ranks the first one downloads.
pub fn find(options: &ModelOptions, has_weights: bool, group: &Group) -> Result<PathBuf> {
    let name = options.model.as_deref().unwrap_or_default();
    let path = Path::new(name);
    if path.is_dir() {
        return Ok(path.to_owned());
    }
    ensure!(
        !path.exists(),
        "{name} is a file: name the folder that holds the model's config.json"
    );
    ensure!(
        is_id(name),
        "there is no folder {name}, and it is no id of the hub such as HuggingFaceTB/SmolLM2-135M"
    );
    if group.rank() == 0 {
        fetch(name, options, has_weights)?;
    }
    group.barrier()?;
    fetch(name, options, has_weights)
}

/// Whether it may be the id of a model: `name`, or `owner/name`.
fn is_id(name: &str) -> bool {
    let is_part = |part: &str| {
        let allows = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !part.is_empty() && !part.starts_with('.') && part.chars().all(allows)
    };
    name.split('/').count() <= 2 && name.split('/').all(is_part)
}

/// Returns the folder of a model in the hub's cache, and fills it first where files are missing.
fn fetch(id: &str, options: &ModelOptions, has_weights: bool) -> Result<PathBuf> {
    let revision = &options.revision;
    let repo = Repo::with_revision(id.to_owned(), RepoType::Model, revision.clone());
    let cached = Cache::from_env().repo(repo.clone());
    let find = |file: &str| {
        // A commit has no entry among the names of revisions where Python has filled the cache.
        let of_commit = || cached.pointer_path(revision).join(file);
        let found = cached.get(file);
        Ok(found.or_else(|| Some(of_commit()).filter(|path| path.is_file())))
    };
    if let Some(folder) = complete(find, has_weights)? {
        return Ok(folder);
    }
    ensure!(
        !options.offline,
        "{id} at {revision} is not in the hub's cache {}: leave out `--offline`, or download it to a folder and name that by `--model`",
        Cache::from_env().path().display()
    );
    let mut api = ApiBuilder::from_env().with_progress(false);
    let endpoint = std::env::var("HF_ENDPOINT");
    if endpoint.is_ok_and(|endpoint| !endpoint.to_ascii_lowercase().starts_with("https://")) {
        // Whoever listens would get it; the one in the hub's cache too.
        api = api.with_token(None);
    } else if let Ok(token) = std::env::var("HF_TOKEN") {
        api = api.with_token(Some(token));
    }
    let api = api.build().context("cannot use the Hugging Face hub")?;
    let api = api.repo(repo);
    let get = |file: &str| match api.get(file) {
        Ok(file) => Ok(Some(file)),
        // The hub does not have it.
        Err(ApiError::RequestError(error)) if error.to_string().ends_with("404") => Ok(None),
        Err(error) => Err(error.into()),
    };
    let folder = complete(get, has_weights)
        .and_then(|folder| folder.context("no config, tokenizer or weights"));
    folder.with_context(|| {
        format!(
            "cannot download {id} at {revision} from the Hugging Face hub: check the name and the network, or name a folder by `--model`"
        )
    })
}

/// The folder of a model, if `get` finds all of its files.
fn complete(
    get: impl Fn(&str) -> Result<Option<PathBuf>>,
    has_weights: bool,
) -> Result<Option<PathBuf>> {
    let (Some(config), Some(_)) = (get("config.json")?, get(vocabulary::TOKENIZER)?) else {
        return Ok(None);
    };
    // Before the weights, by which a later run sees that all is there.
    for file in vocabulary::BESIDE {
        get(file)?;
    }
    if !has_weights {
        return Ok(config.parent().map(Path::to_owned));
    }
    let weights = match get(INDEX)? {
        Some(index) => Vec::from_iter(shards(&index)?),
        None => vec![WEIGHTS.to_owned()],
    };
    for file in &weights {
        if get(file)?.is_none() {
            return Ok(None);
        }
    }
    Ok(config.parent().map(Path::to_owned))
}
