//! Initial parameters.

use anyhow::Result;
use candle_core::{Tensor, Var};
use candle_nn::VarMap;
use rand::Rng;
use rand::rngs::StdRng;

/// Sets seeded parameters in the order of their names, because candle's CPU generator cannot be seeded.
pub fn initialise(varmap: &VarMap, rng: &mut StdRng) -> Result<Vec<Var>> {
    let mut named: Vec<(String, Var)> = match varmap.data().lock() {
        Ok(data) => data
            .iter()
            .map(|(name, var)| (name.clone(), var.clone()))
            .collect(),
        Err(_) => anyhow::bail!("the parameters are locked"),
    };
    named.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (name, var) in &named {
        if let [_, inputs @ ..] = var.dims()
            && !inputs.is_empty()
        {
            // Of a layer's weight (out, in), or a convolution's (out, in, height, width).
            let fan_in: usize = inputs.iter().product();
            let bound = 1. / (fan_in as f32).sqrt();
            let values = (0..var.elem_count()).map(|_| rng.random_range(-bound..bound));
            let values = Tensor::from_iter(values, var.device())?.to_dtype(var.dtype())?;
            var.set(&values.reshape(var.shape())?)?;
        } else if name.ends_with("bias") {
            // candle draws a linear layer's bias at random. A norm's weight stays 1.
            var.set(&var.zeros_like()?)?;
        }
    }
    Ok(named.into_iter().map(|(_, var)| var).collect())
}
