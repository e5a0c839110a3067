//! `nn::audit(…).slopes()`: finds each wrong gradient, down to the Var, and refuses no right one.

mod candle;
mod mutations;
mod safety;
mod verdicts;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom_nn::{Audit, Received};
use candle_nn::VarMap;

/// Adds a Var of these values.
fn put(varmap: &VarMap, name: &str, values: &Tensor, dtype: DType) -> Result<Tensor> {
    let var = Var::from_tensor(&values.to_dtype(dtype)?)?;
    let mut data = varmap.data().lock().expect("Vars");
    data.insert(name.to_owned(), var.clone());
    Ok(var.into_inner())
}

fn names(audit: &Audit, received: Received) -> Vec<&str> {
    audit.of(received).map(|var| var.name.as_str()).collect()
}

/// The bits of all Vars, by name.
fn bits(varmap: &VarMap) -> Vec<(String, Vec<u8>)> {
    let data = varmap.data().lock().expect("Vars");
    let bits = data.iter().map(|(name, var)| {
        let mut bytes = Vec::new();
        var.as_tensor().write_bytes(&mut bytes).expect("bytes");
        (name.clone(), bytes)
    });
    let mut bits: Vec<_> = bits.collect();
    bits.sort();
    bits
}

/// Numbers between -1 and 1.
fn wave(dims: &[usize], phase: usize) -> Result<Tensor> {
    let len: usize = dims.iter().product();
    let values = (0..len).map(|i| ((i * 7 + phase * 3 + 1) as f64).sin());
    Tensor::from_iter(values, &Device::Cpu)?.reshape(dims)
}

fn on_cpu(values: &[f64]) -> Tensor {
    Tensor::new(values, &Device::Cpu).expect("values")
}
