//! The parameters of a model by their names: drawn, set from files, and saved.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use candle_core::{Tensor, Var};
use candle_headroom::nn::VarMap;
use rand::Rng;

use super::weights::Weights;

/// What tensors are that belong to no parameter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extra {
    Ignored,
    Refused,
}

/// The parameters of a map by name.
pub fn named(varmap: &VarMap) -> Result<Vec<(String, Var)>> {
    let Ok(data) = varmap.data().lock() else {
        bail!("the parameters are locked")
    };
    let named = data.iter().map(|(name, var)| (name.clone(), var.clone()));
    let mut named: Vec<_> = named.collect();
    named.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(named)
}

/// Sets each parameter to the tensor of its name, cast to its type. Nothing is changed unless all fit.
pub fn fill(varmap: &VarMap, weights: &Weights, extra: Extra) -> Result<()> {
    let vars = named(varmap)?;
    let mut problems = Vec::new();
    for (name, var) in &vars {
        match weights.shape(name) {
            None => problems.push(format!("{name} is missing")),
            Some(shape) if shape != var.dims() => problems.push(format!(
                "{name} has shape {shape:?}, the model needs {:?}",
                var.dims()
            )),
            Some(_) => {}
        }
    }
    if extra == Extra::Refused {
        let mut others: Vec<_> = weights.names().collect();
        others.retain(|name| !vars.iter().any(|(var, _)| var == *name));
        others.sort_unstable();
        let others = others.into_iter();
        problems.extend(others.map(|name| format!("{name} belongs to no parameter")));
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("; "))
    }
    for (name, var) in &vars {
        var.set(&weights.load(name, var.device())?.to_dtype(var.dtype())?)?;
    }
    Ok(())
}

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

/// Draws the parameters of a new model or of new adapters as transformers and PEFT do: weights from a normal distribution of this
/// deviation, adapters' `lora_A` from a uniform one; biases and `lora_B` are 0, norms 1. candle's generator on the CPU has no
/// seed.
pub fn initialize(varmap: &VarMap, deviation: f64, rng: &mut impl Rng) -> Result<()> {
    for (name, var) in named(varmap)? {
        let count = var.elem_count();
        let values: Vec<f32> = match *var.dims() {
            _ if name.ends_with("lora_B.weight") => vec![0.; count],
            [_, inputs] if name.ends_with("lora_A.weight") => {
                let bound = 1. / (inputs as f32).sqrt();
                let drawn = (0..count).map(|_| rng.random_range(-bound..bound));
                drawn.collect()
            }
            [_, _] => (0..count).map(|_| normal(rng) * deviation as f32).collect(),
            _ if name.ends_with("bias") => vec![0.; count],
            _ => vec![1.; count],
        };
        let values = Tensor::from_vec(values, var.shape(), var.device())?;
        var.set(&values.to_dtype(var.dtype())?)?;
    }
    Ok(())
}

/// A number of the normal distribution, by the method of Box and Muller.
fn normal(rng: &mut impl Rng) -> f32 {
    let radius = (-2. * (1. - rng.random::<f64>()).ln()).sqrt();
    (radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()) as f32
}
