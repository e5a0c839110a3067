//! Runs one model: gradients of a loss, bytes for each sample, and whether the gradient is the loss's slope.

use crate::inputs::noise;
use crate::memory::peak_of;
use crate::models::Model;
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use candle_core::{Result, Tensor, backprop::GradStore};
use std::collections::BTreeMap;
use std::time::Instant;

type Gradients = BTreeMap<String, Tensor>;

pub fn run(model: &Model) -> Result<(Outcome, Gradients)> {
    let started = Instant::now();
    let parameters = Parameters::default();
    let mut forward = (model.build)(parameters.builder())?;
    let (small, large) = model.batches;
    // The first step also fills what is allocated once, such as the scratch memory of matrix products.
    let (loss, store) = step(&mut forward, small)?;
    let vars = parameters.vars();
    let gradients: Gradients =
        vars.iter().filter_map(|(name, var)| Some((name.clone(), store.get(var.as_tensor())?.detach()))).collect();
    drop(store);

    let mut outcome = Outcome { vars: vars.keys().cloned().collect(), loss: f64::from(loss), ..Outcome::default() };
    if large > small {
        let (result, least) = peak_of(|| step(&mut forward, small).map(drop));
        result?;
        let (result, most) = peak_of(|| step(&mut forward, large).map(drop));
        result?;
        outcome.bytes_per_sample = Some((most as f64 - least as f64) / (large - small) as f64);
    }
    outcome.slope = slope(model, &vars.into_iter().map(|(name, var)| (name, var.as_tensor().clone())).collect(), &gradients)?;
    outcome.seconds = started.elapsed().as_secs_f64();
    Ok((outcome, gradients))
}

fn loss_of(output: &Tensor) -> Result<Tensor> {
    output.sqr()?.mean_all()
}

fn step(forward: &mut dyn FnMut(usize) -> Result<Tensor>, batch: usize) -> Result<(f32, GradStore)> {
    let loss = loss_of(&forward(batch)?)?;
    let store = loss.backward()?;
    Ok((loss.to_scalar()?, store))
}

/// Moves every element by ±ε of its Var's root mean square, up or down as its gradient says, and compares the change of the loss with
/// the gradient's: 1 if every path from a Var to the loss is differentiated.
fn slope(model: &Model, vars: &BTreeMap<String, Tensor>, gradients: &Gradients) -> Result<Option<f64>> {
    const EPSILON: f64 = 2e-4;
    let (mut direction, mut expected) = (BTreeMap::new(), 0.0);
    for (name, value) in vars.iter().filter(|(name, _)| !name.contains("running_")) {
        let along = match gradients.get(name) {
            Some(gradient) => gradient.sign()?,
            None => noise(value.shape())?.sign()?,
        };
        let along = (along * (norm(value)? / (value.elem_count() as f64).sqrt()))?;
        if let Some(gradient) = gradients.get(name) {
            expected += f64::from((gradient * &along)?.sum_all()?.to_scalar::<f32>()?);
        }
        direction.insert(name.clone(), along);
    }
    let mut losses = [0.0; 2];
    for (loss, sign) in losses.iter_mut().zip([1.0, -1.0]) {
        let shifts = direction.iter().map(|(name, along)| Ok((name.clone(), (along * (sign * EPSILON))?)));
        let moved = Parameters::shifted(shifts.collect::<Result<_>>()?);
        let mut forward = (model.build)(moved.builder())?;
        *loss = f64::from(loss_of(&forward(model.batches.0)?)?.to_scalar::<f32>()?);
    }
    let found = (losses[0] - losses[1]) / (2.0 * EPSILON);
    Ok((expected != 0.0).then(|| found / expected))
}

pub fn norm(tensor: &Tensor) -> Result<f64> {
    Ok(f64::from(tensor.to_dtype(candle_core::DType::F32)?.sqr()?.sum_all()?.to_scalar::<f32>()?).sqrt())
}
