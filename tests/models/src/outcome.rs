//! What one model's run leaves behind: a file of facts and a file of gradients.

use anyhow::Context;
use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

#[derive(Serialize, Deserialize, Default)]
pub struct Outcome {
    pub vars: Vec<String>,
    pub loss: f64,
    /// Slope of the peak of live bytes between two batch sizes.
    pub bytes_per_sample: Option<f64>,
    /// (loss at θ + εd − loss at θ − εd) / 2ε, divided by what the gradient says.
    pub slope: Option<f64>,
    /// What the trainer says of the loss in parts of a batch, or its error.
    pub cut: Option<Result<String, String>>,
    pub seconds: f64,
    pub error: Option<String>,
}

impl Outcome {
    pub fn save(
        &self,
        folder: &Path,
        model: &str,
        gradients: &BTreeMap<String, Tensor>,
    ) -> anyhow::Result<()> {
        let gradients: HashMap<_, _> = gradients
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor.clone()))
            .collect();
        candle_core::safetensors::save(&gradients, folder.join(format!("{model}.safetensors")))?;
        std::fs::write(
            folder.join(format!("{model}.json")),
            serde_json::to_vec_pretty(self)?,
        )?;
        Ok(())
    }

    pub fn load(folder: &Path, model: &str) -> anyhow::Result<(Self, HashMap<String, Tensor>)> {
        let path = folder.join(format!("{model}.json"));
        let text =
            std::fs::read(&path).with_context(|| format!("no result in {}", path.display()))?;
        let gradients = candle_core::safetensors::load(
            folder.join(format!("{model}.safetensors")),
            &Device::Cpu,
        )?;
        Ok((serde_json::from_slice(&text)?, gradients))
    }
}
