use anyhow::Result;
use candle_core::Tensor;
use candle_headroom::nn::VarMap;
use rand::Rng;

use super::fill::named;

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
                (0..count)
                    .map(|_| rng.random_range(-bound..bound))
                    .collect()
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
