use candle_core::{Result, Tensor};

use super::activations::silu;
use super::curves::Curve;
use super::elementwise::Slopes;
use crate::graph::record_lean;
use crate::kernel;

/// a + b, of one shape and type, for example a block's input and what the block adds to it.
///
/// It keeps nothing. candle's sum keeps both tensors until the graph is dropped.
///
/// # Errors
/// If shapes, types or devices differ.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let sum = (a.detach() + b.detach())?;
    record_lean("add", [a, b], sum, |gradient, needs| {
        Ok(needs.map(|needed| needed.then(|| gradient.clone())))
    })
}

/// silu(gate) · up, as [`swiglu`](super::swiglu()) of two tensors (Shazeer 2020, arXiv 2002.05202).
///
/// It keeps the two inputs.
///
/// # Errors
/// If shapes, types or devices differ, or for a type other than f64, f32, f16 and bf16.
pub fn silu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    if !kernel::runs_on(gate.device()) {
        return silu(gate)? * up;
    }
    let kept = [gate.detach(), up.detach()];
    let [g, u] = &kept;
    let product = (silu(g)? * u)?;
    record_lean("silu_mul", [gate, up], product, move |gradient, needs| {
        let [gate, up] = &kept;
        let [of_gate, of_up] = needs;
        let of_gate = of_gate.then(|| {
            let [gradient] = kernel::run(&Slopes(Curve::Silu), [gate, &(&gradient * up)?])?;
            Result::Ok(gradient)
        });
        let of_up = of_up.then(|| &gradient * silu(gate)?);
        Ok([of_gate.transpose()?, of_up.transpose()?])
    })
}
