//! The fused optimizers on the CPU: against candle's and against naive loops, at the edges of sizes, types and layouts, and as
//! a whole or not at all.

mod advised;
mod atomic;
mod both;
mod candle;
mod eight_bit;
mod frozen;
mod gradients;
mod layouts;
mod ranges;
mod refused;
mod scaled;
mod sharded;
mod shared;
mod sizes;

use crate::support::{Mlp, distance, flat, snapshot, wave};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::error::Phase;
use candle_headroom::optim::{
    Adam, Algorithm, Commit, Committed, Fused, FusedBuilder, Group, GroupOptions, LossScale,
    Moments, ParamsAdam, ParamsAdamW, ParamsLion, ParamsSgd, Progress,
};
use candle_headroom::testing::Faults;
use candle_headroom::{AdamW, Error, Sgd};
use candle_nn::Optimizer;
use proptest::prelude::*;

/// Every rule, with hyper-parameters under which all of its terms count.
macro_rules! for_each_algorithm {
    (|$params:ident| $body:expr) => {{
        for_each_algorithm!(@one $params, $body, adamw());
        for_each_algorithm!(@one $params, $body, adam());
        for_each_algorithm!(@one $params, $body, sgd(0.));
        for_each_algorithm!(@one $params, $body, sgd(0.9));
        for_each_algorithm!(@one $params, $body, lion());
    }};
    (@one $params:ident, $body:expr, $value:expr) => {{
        let $params = $value;
        $body
    }};
}
use for_each_algorithm;

fn adamw() -> ParamsAdamW {
    ParamsAdamW {
        lr: 0.01,
        weight_decay: 0.1,
        ..Default::default()
    }
}

fn adam() -> ParamsAdam {
    ParamsAdam {
        lr: 0.01,
        weight_decay: 0.1,
        ..Default::default()
    }
}

fn sgd(momentum: f64) -> ParamsSgd {
    ParamsSgd {
        lr: 0.05,
        momentum,
        dampening: momentum / 3.,
        weight_decay: 0.1,
        nesterov: momentum > 0.,
    }
}

fn lion() -> ParamsLion {
    ParamsLion {
        lr: 0.01,
        weight_decay: 0.3,
        ..Default::default()
    }
}

/// From 64 Ki elements on a parameter is shared out among threads, 16 Ki at a time; this is a bit more than a whole number of them.
const LARGE: usize = 64 * 1024 + 16 * 1024 + 17;

fn tensor(shape: &[usize], phase: usize, dtype: DType) -> Tensor {
    let len = shape.iter().product();
    wave(len, phase, dtype).unwrap().reshape(shape).unwrap()
}

fn make_vars(shapes: &[&[usize]], dtype: DType) -> Vec<Var> {
    let vars = shapes.iter().enumerate();
    let vars = vars.map(|(i, shape)| Var::from_tensor(&tensor(shape, i, dtype)).unwrap());
    vars.collect()
}

fn copies(vars: &[Var]) -> Vec<Var> {
    let vars = vars.iter();
    vars.map(|var| Var::from_tensor(&var.as_detached_tensor()).unwrap())
        .collect()
}

fn store(pairs: impl IntoIterator<Item = (Var, Tensor)>) -> GradStore {
    let mut store = GradStore::default();
    for (var, gradient) in pairs {
        store.insert(&var, gradient);
    }
    store
}

/// A gradient of its own for each Var and step.
fn gradients(vars: &[Var], step: usize) -> GradStore {
    store(vars.iter().enumerate().map(|(i, var)| {
        let gradient = tensor(var.dims(), 100 + 31 * step + i, var.dtype());
        (var.clone(), gradient)
    }))
}

fn bits(vars: &[Var]) -> Vec<Vec<u64>> {
    let values = snapshot(vars).into_iter();
    values
        .map(|values| values.into_iter().map(f64::to_bits).collect())
        .collect()
}

/// Progress to the bit: a norm that is not a number equals itself here.
fn counted(progress: Progress) -> (u64, u64, Option<u64>, Option<u64>) {
    (
        progress.steps,
        progress.skipped,
        progress.loss_scale.map(f64::to_bits),
        progress.gradient_norm.map(f64::to_bits),
    )
}

/// The text of an error about an optimizer.
fn optimizer_error(error: Error) -> String {
    assert!(error.is_optimizer(), "{error:?}");
    error.to_string()
}

/// The error for gradients of a loss that was not scaled.
const UNSCALED: &str = "the optimizer has a loss scale, but the loss was not scaled: differentiate `optimizer.scale_loss(&loss)?`, or call `backward_step`";

/// The error for a parameter of which a shard says nothing.
fn unlisted(parameter: &str) -> String {
    format!(
        "the shard does not list parameter `{parameter}`: call `shard` with the ranges of all parameters that are not frozen, and none where this rank owns nothing"
    )
}

/// An update with gradients that did not come from a loss, also with a loss scale.
fn commit<A: Algorithm>(
    optimizer: &mut Fused<A>,
    gradients: &GradStore,
) -> Result<Committed, Error> {
    let device = optimizer.parameters()[0].var.device();
    optimizer.scale_loss(&Tensor::ones((), DType::F32, device)?)?;
    optimizer.commit(gradients)
}

fn refused_at_first<A: Algorithm>(optimizer: Result<Fused<A>, Error>) -> String {
    optimizer_error(optimizer.unwrap_err())
}
