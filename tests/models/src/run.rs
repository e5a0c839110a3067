//! Runs one model: gradients of a loss, bytes for each sample, and whether the gradient is the loss's slope.

use crate::inputs::noise;
use crate::memory::peak_of;
use crate::models::{Model, is_statistic};
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use candle_core::{DType, Result, Tensor, Var, backprop::GradStore};
use std::collections::BTreeMap;
use std::time::Instant;

type Gradients = BTreeMap<String, Tensor>;

/// `parameters` are new, and hold the model's afterwards, also after an error.
pub fn run(model: &Model, parameters: Parameters) -> Result<(Outcome, Gradients)> {
    let started = Instant::now();
    let mut forward = (model.build)(parameters.builder())?;
    // It also fills what is allocated once, such as the scratch memory of matrix products.
    let (loss, store) = step(&mut forward, model.batches.0)?;
    let vars = parameters.vars();
    let gradients: Gradients = vars
        .iter()
        .filter_map(|(name, var)| Some((name.clone(), store.get(var.as_tensor())?.detach())))
        .collect();
    drop(store);

    let mut outcome = Outcome {
        vars: vars.keys().cloned().collect(),
        loss: f64::from(loss),
        bytes_per_sample: slope_of_bytes(model, &mut forward)?,
        ..Outcome::default()
    };
    #[cfg(feature = "trainer")]
    {
        outcome.cut = crate::cut::check(model, &parameters, &mut forward)?;
    }
    let moved: Vec<_> = vars
        .iter()
        .filter(|(name, _)| !is_statistic(name) && model.why_detached(name).is_none())
        .collect();
    // f16 is too coarse for small steps.
    if !model.random && vars.values().all(|var| var.dtype() == DType::F32) {
        outcome.slope = slope(model, &moved, &gradients)?;
    }
    outcome.seconds = started.elapsed().as_secs_f64();
    Ok((outcome, gradients))
}

/// Two steps with their updates, of a model on any device: for those who count its allocations.
pub fn updates(model: &Model) -> Result<()> {
    let parameters = Parameters::without(model.absent);
    let mut forward = (model.build)(parameters.builder())?;
    for _ in 0..2 {
        let (_, store) = step(&mut forward, model.batches.0)?;
        for var in parameters.vars().values() {
            if let Some(gradient) = store.get(var.as_tensor()) {
                var.set(&(var.as_tensor() - (gradient * 1e-3)?)?)?;
            }
        }
    }
    Ok(())
}

/// The slope of the peak of live bytes, of a model that is made anew.
pub fn bytes(model: &Model) -> Result<Option<f64>> {
    let mut forward = (model.build)(Parameters::without(model.absent).builder())?;
    step(&mut forward, model.batches.0)?;
    slope_of_bytes(model, &mut forward)
}

fn slope_of_bytes(
    model: &Model,
    forward: &mut dyn FnMut(usize) -> Result<Tensor>,
) -> Result<Option<f64>> {
    let (small, large) = model.batches;
    if large <= small {
        return Ok(None);
    }
    let (result, least) = peak_of(|| step(forward, small).map(drop));
    result?;
    let (result, most) = peak_of(|| step(forward, large).map(drop));
    result?;
    let slope = (most as f64 - least as f64) / (large - small) as f64;
    Ok(Some(slope))
}

pub fn loss_of(output: &Tensor) -> Result<Tensor> {
    output.sqr()?.mean_all()
}

fn step(
    forward: &mut dyn FnMut(usize) -> Result<Tensor>,
    batch: usize,
) -> Result<(f32, GradStore)> {
    let loss = loss_of(&forward(batch)?)?;
    let store = loss.backward()?;
    Ok((loss.to_scalar()?, store))
}

/// Moves every element of the named Vars by ±ε of its Var's root mean square, up or down as its gradient says, and divides the change
/// of the loss by the gradient's: 1 if every path from these Vars to the loss is differentiated. None if the gradient is zero.
fn slope(model: &Model, vars: &[(&String, &Var)], gradients: &Gradients) -> Result<Option<f64>> {
    let (mut direction, mut expected) = (BTreeMap::new(), 0.0);
    for (name, value) in vars {
        let along = match gradients.get(*name) {
            Some(gradient) => gradient.sign()?,
            None => noise(value.shape())?.sign()?,
        };
        let along = (along * (norm(value)? / (value.elem_count() as f64).sqrt()))?;
        if let Some(gradient) = gradients.get(*name) {
            expected += f64::from(
                (gradient * &along)?
                    .to_dtype(DType::F32)?
                    .sum_all()?
                    .to_scalar::<f32>()?,
            );
        }
        direction.insert(*name, along);
    }
    if expected == 0.0 {
        return Ok(None);
    }
    // Rounding asks for large steps; curvature, and choices such as a router's, for small ones.
    let mut best = f64::INFINITY;
    for epsilon in [2e-4, 4e-5, 1e-5] {
        let mut losses = [0.0; 2];
        for (loss, sign) in losses.iter_mut().zip([1.0, -1.0]) {
            let shifts = direction
                .iter()
                .map(|(name, along)| Ok((name.to_string(), (along * (sign * epsilon))?)));
            let moved = Parameters::without(model.absent).shifted(shifts.collect::<Result<_>>()?);
            let mut forward = (model.build)(moved.builder())?;
            *loss = f64::from(loss_of(&forward(model.batches.0)?)?.to_scalar::<f32>()?);
        }
        let slope = (losses[0] - losses[1]) / (2.0 * epsilon) / expected;
        if (slope - 1.0).abs() < (best - 1.0).abs() {
            best = slope;
        }
        if (best - 1.0).abs() < 0.005 {
            break;
        }
    }
    Ok(Some(best))
}

/// Prints [`slope`] for each Var: where a path is cut, it is far from 1 in what lies before.
pub fn slopes(model: &Model) -> Result<()> {
    let parameters = Parameters::without(model.absent);
    let mut forward = (model.build)(parameters.builder())?;
    let (_, store) = step(&mut forward, model.batches.0)?;
    for var in &parameters.vars() {
        let gradients: Gradients = store
            .get(var.1.as_tensor())
            .into_iter()
            .map(|gradient| (var.0.clone(), gradient.detach()))
            .collect();
        match slope(model, &[var], &gradients)? {
            Some(slope) => println!("{slope:7.3} {}", var.0),
            None => println!("      – {}", var.0),
        }
    }
    Ok(())
}

pub fn norm(tensor: &Tensor) -> Result<f64> {
    Ok(f64::from(
        tensor
            .to_dtype(DType::F32)?
            .sqr()?
            .sum_all()?
            .to_scalar::<f32>()?,
    )
    .sqrt())
}
