use anyhow::{Result, bail};
use candle_core::Var;
use candle_headroom::nn::VarMap;

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
    let mut named: Vec<_> = data
        .iter()
        .map(|(name, var)| (name.clone(), var.clone()))
        .collect();
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
