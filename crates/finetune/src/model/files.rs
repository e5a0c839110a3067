//! Folders of models: `config.json` and `model.safetensors`, whole or in shards.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use candle_headroom::nn::VarMap;
use serde::Deserialize;

use super::config::Config;
use super::parameters::{Weights, fill, save};

pub const WEIGHTS: &str = "model.safetensors";
pub const INDEX: &str = "model.safetensors.index.json";

/// Sets the parameters of a decoder that was made in `varmap` to those of a folder's model, cast to their type. If any is missing
/// or has another shape, the error names all of these, and no parameter is changed.
pub fn load_into(varmap: &VarMap, folder: &Path) -> Result<()> {
    let weights = Weights::open(&files_of(folder)?)?;
    fill(varmap, &weights, false)
        .with_context(|| format!("the weights in {} do not fit", folder.display()))
}

/// Saves a model's options and the parameters of `varmap` in a folder that transformers reads. It is made if it is missing.
pub fn save_model(folder: &Path, config: &Config, varmap: &VarMap) -> Result<()> {
    let dtype = varmap.all_vars().first().map(|var| var.dtype());
    config.save(folder, dtype)?;
    // Those of an earlier model in several files would be read instead.
    match fs::remove_file(folder.join(INDEX)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error)?,
        _ => {}
    }
    save(varmap, &folder.join(WEIGHTS))
}

/// The files that a folder's parameters are in.
pub fn files_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let (index, single) = (folder.join(INDEX), folder.join(WEIGHTS));
    if index.exists() {
        let names = shards(&index)?.into_iter();
        return Ok(names.map(|name| folder.join(name)).collect());
    }
    ensure!(
        single.exists(),
        "{} has no {WEIGHTS} and no {INDEX}; other formats of weights are not read",
        folder.display()
    );
    Ok(vec![single])
}

/// The files that an index names. Names that are not those of files in its folder are refused: an index may come from anywhere.
pub fn shards(index: &Path) -> Result<BTreeSet<String>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: HashMap<String, String>,
    }
    let read = || anyhow::Ok(serde_json::from_str(&fs::read_to_string(index)?)?);
    let all: Index = read().with_context(|| format!("cannot read {}", index.display()))?;
    let names: BTreeSet<_> = all.weight_map.into_values().collect();
    for name in &names {
        ensure!(
            Path::new(name).file_name() == Some(name.as_ref()),
            "{INDEX}: `{name}` is not a file of this folder"
        );
    }
    Ok(names)
}
