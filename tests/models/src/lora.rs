//! Adapters of `candle_headroom::nn::lora` in models of candle-transformers: one call, and the model is as it was.

use crate::models::{self, Model};
use crate::parameters::Parameters;
use crate::run::loss_of;
use anyhow::{Context, Result, ensure};
use candle_core::{Tensor, Var};
use candle_nn::VarMap;
use candle_nn::lora::Lora;
use std::collections::{BTreeMap, BTreeSet};

const STEPS: usize = 20;

/// Trains adapters on all linear layers of each model, and prints in how many all of them receive gradients, the loss falls and no
/// other parameter moves.
pub fn run(names: &[&str]) -> Result<()> {
    for name in names {
        let model = models::named(name)?;
        for dora in [false, true] {
            let layers = train(&model, dora).with_context(|| format!("{name}, dora: {dora}"))?;
            println!(
                "{name}: {layers} adapters{}",
                if dora { " with magnitudes" } else { "" }
            );
        }
    }
    println!("figure: lora/models_reached = {0} of {0}", names.len());
    Ok(())
}

/// Returns the number of layers that have adapters.
fn train(model: &Model, dora: bool) -> Result<usize> {
    let (parameters, adapters) = (Parameters::without(model.absent), VarMap::new());
    let lora = Lora {
        rank: 4,
        alpha: 8.,
        dora,
        ..Lora::default()
    };
    let step = || -> Result<(f32, usize)> {
        // Some models keep a state, so each step makes its own, of the same parameters.
        let (output, layers) = lora.attach(&adapters, || {
            (model.build)(parameters.builder())?(model.batches.0)
        })?;
        let loss = loss_of(&output)?;
        let gradients = loss.backward()?;
        let names = named(&adapters);
        for (name, var) in &names {
            let gradient = gradients
                .get(var)
                .with_context(|| format!("{name} has no gradient"))?;
            // In proportion to the largest, so that every model takes steps of one size.
            let largest = gradient.abs()?.max_all()?.to_scalar::<f32>()?.max(1e-20);
            var.set(&(var.as_tensor() - (gradient * (0.003 / f64::from(largest)))?)?)?;
        }
        let expected: BTreeSet<_> = layers.keys().map(String::as_str).collect();
        let found = names.keys().filter_map(|name| {
            name.strip_prefix("base_model.model.")?
                .strip_suffix(".lora_A.weight")
        });
        ensure!(
            found.collect::<BTreeSet<_>>() == expected,
            "adapters of other layers"
        );
        Ok((loss.to_scalar()?, layers.len()))
    };
    let (first, layers) = step()?;
    let before = values(&parameters.vars())?;
    let mut last = first;
    for _ in 0..STEPS {
        (last, _) = step()?;
    }
    ensure!(last < first, "the loss went from {first} to {last}");
    ensure!(
        before == values(&parameters.vars())?,
        "another parameter moved"
    );
    Ok(layers)
}

fn named(adapters: &VarMap) -> BTreeMap<String, Var> {
    let vars = adapters.data().lock().expect("no panic").clone();
    vars.into_iter().collect()
}

fn values(vars: &BTreeMap<String, Var>) -> Result<Vec<Vec<f32>>> {
    let value = |tensor: &Tensor| Ok(tensor.flatten_all()?.to_vec1()?);
    vars.values().map(|var| value(var.as_tensor())).collect()
}
