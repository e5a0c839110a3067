use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use candle_headroom::nn::VarMap;

use super::fill::named;

/// Saves parameters under their names, as PyTorch's libraries expect it. The file takes its place when it is whole.
pub fn save(varmap: &VarMap, path: &Path) -> Result<()> {
    let write = || {
        let vars = named(varmap)?;
        let tensors = vars.iter().map(|(name, var)| (name, var.as_tensor()));
        let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let partial = path.with_extension("partial");
        safetensors::serialize_to_file(tensors, Some(format), &partial)?;
        anyhow::Ok(fs::rename(&partial, path)?)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
