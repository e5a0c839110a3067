use anyhow::{Result, bail};
use candle_core::Var;
use candle_core::safetensors::MmapedSafetensors;
use candle_headroom::nn::VarMap;

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
pub fn fill(varmap: &VarMap, tensors: &MmapedSafetensors, extra: Extra) -> Result<()> {
    let vars = named(varmap)?;
    let mut problems = Vec::new();
    for (name, var) in &vars {
        match tensors.get(name) {
            Err(_) => problems.push(format!("{name} is missing")),
            Ok(tensor) if tensor.shape() != var.dims() => problems.push(format!(
                "{name} has shape {:?}, the model needs {:?}",
                tensor.shape(),
                var.dims()
            )),
            Ok(_) => {}
        }
    }
    if extra == Extra::Refused {
        let others = tensors.tensors().into_iter().map(|(name, _)| name);
        let others = others.filter(|name| !vars.iter().any(|(var, _)| var == name));
        problems.extend(others.map(|name| format!("{name} belongs to no parameter")));
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("; "))
    }
    for (name, var) in &vars {
        var.set(&tensors.load(name, var.device())?.to_dtype(var.dtype())?)?;
    }
    Ok(())
}
