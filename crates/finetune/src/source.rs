//! Where a model's files are: in a folder, in the hub's cache, or on the Hugging Face hub.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use candle_headroom::distributed::Group;
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use crate::arguments::ModelOptions;
use crate::vocabulary;
use headroom_finetune::model::shards;

const INDEX: &str = "model.safetensors.index.json";
const WEIGHTS: &str = "model.safetensors";

/// Finds the folder of the model. Of several ranks the first one downloads.
pub fn find(options: &ModelOptions, group: &Group) -> Result<PathBuf> {
    let name = options.model.as_deref().unwrap_or_default();
    let path = Path::new(name);
    if path.is_dir() {
        return check(path);
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
        fetch(name, options)?;
    }
    group.barrier()?;
    check(&fetch(name, options)?)
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
        (&[WEIGHTS, INDEX], "its weights; other formats are not read"),
    ] {
        let is_there = files.iter().any(|file| folder.join(file).is_file());
        let (folder, names) = (folder.display(), files.join(" and no "));
        ensure!(is_there, "{folder} has no {names}, {what}");
    }
    Ok(folder.to_owned())
}

/// Returns the folder of a model in the hub's cache, and fills it first where files are missing.
fn fetch(id: &str, options: &ModelOptions) -> Result<PathBuf> {
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
    let revision = &options.revision;
    if options.offline {
        bail!(
            "{id} at {revision} is not in the hub's cache {}: leave out `--offline`, or download it to a folder and name that by `--model`",
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
    let api = api.build().context("cannot use the Hugging Face hub")?;
    let unreachable = || {
        format!(
            "cannot download {id} at {revision} from the Hugging Face hub: check the name and the network, or name a folder by `--model`"
        )
    };
    download(&api.repo(repo())).with_context(unreachable)?;
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
