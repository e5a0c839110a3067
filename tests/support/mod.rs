//! Helpers for tests, with small real models and policies.
#![allow(dead_code, reason = "each test file uses its own part")]

#[path = "../../examples/train_text/model.rs"]
pub mod transformer;

mod alone;
pub mod layered;
mod models;
mod policies;
pub mod remedies;

#[allow(unused_imports, reason = "each test file uses its own part")]
pub use alone::{Alone, alone};
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::optim::{Commit, ParamsAdamW};
use candle_headroom::testing::out_of_memory;
use candle_headroom::train::AdaptiveTrainerBuilder;
use candle_headroom::{AccumulatingTrainer, AdaptiveTrainer, Foreign, GradientAccumulator};
use candle_nn::{AdamW, Optimizer, SGD, VarMap};
#[allow(unused_imports, reason = "each test file uses its own part")]
pub use models::{ConvNet, Mlp};
#[allow(unused_imports, reason = "each test file uses its own part")]
pub use policies::{Halves, Returns, Schedule};

/// All Vars of a map, sorted by name, so that two models can be compared.
pub fn vars(varmap: &VarMap) -> Vec<Var> {
    let data = varmap.data().lock().unwrap();
    let mut named: Vec<_> = data.iter().collect();
    named.sort_by_key(|(name, _)| name.as_str());
    named.into_iter().map(|(_, var)| var.clone()).collect()
}

/// Fills Vars with values that depend only on their positions.
pub fn settle(varmap: &VarMap) -> Vec<Var> {
    let vars = vars(varmap);
    for (index, var) in vars.iter().enumerate() {
        let wave = wave(var.elem_count(), index, var.dtype()).unwrap();
        let values = (wave.reshape(var.shape()).unwrap() * 0.3).unwrap();
        var.set(&values.to_device(var.device()).unwrap()).unwrap();
    }
    vars
}

/// `sin` of positions: numbers of all sizes, the same in each run.
pub fn wave(len: usize, phase: usize, dtype: DType) -> Result<Tensor> {
    let values = (0..len).map(|i| ((i * 7 + phase * 3 + 1) as f64).sin());
    Tensor::from_iter(values, &Device::Cpu)?.to_dtype(dtype)
}

pub fn snapshot(vars: &[Var]) -> Vec<Vec<f64>> {
    vars.iter().map(|var| flat(var)).collect()
}

pub fn flat(tensor: &Tensor) -> Vec<f64> {
    let flat = tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap();
    flat.to_vec1().unwrap()
}

/// The largest difference, relative to the largest value.
pub fn distance(a: &[Vec<f64>], b: &[Vec<f64>]) -> f64 {
    let pairs = || a.iter().flatten().zip(b.iter().flatten());
    assert_eq!(a.iter().flatten().count(), b.iter().flatten().count());
    let scale = pairs().fold(0f64, |max, (a, b)| max.max(a.abs()).max(b.abs()));
    pairs().fold(0f64, |max, (a, b)| max.max((a - b).abs())) / scale
}

/// One of candle's own optimizers, for a trainer.
pub fn foreign<O: Optimizer>(vars: &[Var], config: O::Config) -> Foreign<O> {
    Foreign::new(O::new(vars.to_vec(), config).unwrap(), vars.to_vec())
}

/// candle's gradient descent.
pub fn sgd(vars: &[Var], learning_rate: f64) -> Foreign<SGD> {
    foreign(vars, learning_rate)
}

/// candle's AdamW, which allocates in each update.
pub fn adamw(vars: &[Var], learning_rate: f64) -> Foreign<AdamW> {
    let params = ParamsAdamW {
        lr: learning_rate,
        ..Default::default()
    };
    foreign(vars, params)
}

/// An accumulator of these Vars' gradients, for tests that do not update.
pub fn accumulator(vars: &[Var]) -> GradientAccumulator<Foreign<SGD>> {
    let builder = GradientAccumulator::builder(sgd(vars, 0.));
    builder.build().unwrap()
}

/// A trainer of all Vars of a model by plain gradient descent.
pub fn by_sgd(model: &Mlp) -> AdaptiveTrainerBuilder<Foreign<SGD>> {
    AdaptiveTrainer::builder(sgd(&model.vars, 0.01))
}

/// Fails where a micro-batch has more samples than there is room for.
pub fn with_room(room: &std::cell::Cell<usize>, x: &Tensor) -> Result<()> {
    match x.dim(0)? > room.get() {
        true => Err(out_of_memory()),
        false => Ok(()),
    }
}

/// The accumulated gradients of `vars`, in their order.
pub fn read(vars: &[Var], accumulator: &GradientAccumulator<impl Commit>) -> Vec<Vec<f64>> {
    let store = accumulator.gradients().unwrap();
    vars.iter()
        .map(|var| flat(store.get(var).unwrap()))
        .collect()
}

/// Accumulates mean losses over runs of these sizes.
pub fn accumulate_means(
    model: &Mlp,
    sizes: &[usize],
    dtype: DType,
) -> GradientAccumulator<Foreign<SGD>> {
    let (x, y) = Mlp::data(sizes.iter().sum(), dtype);
    let mut accumulator = accumulator(&model.vars);
    let mut start = 0;
    for &size in sizes {
        let (x, y) = (
            x.narrow(0, start, size).unwrap(),
            y.narrow(0, start, size).unwrap(),
        );
        accumulator.add(model.loss(&x, &y).unwrap(), size).unwrap();
        start += size;
    }
    accumulator
}

/// A trainer that updates after this many batches.
pub fn accumulating(vars: &[Var], micro_batches: usize) -> AccumulatingTrainer<Foreign<AdamW>> {
    AccumulatingTrainer::builder(adamw(vars, 0.01), micro_batches)
        .build()
        .unwrap()
}

/// Batches of these sizes, as from a loader.
pub fn batches(sizes: &[usize]) -> Vec<(Tensor, Tensor)> {
    let (x, y) = Mlp::data(sizes.iter().sum(), DType::F32);
    let mut start = 0;
    let cut = sizes.iter().map(|&size| {
        let part = |t: &Tensor| t.narrow(0, start, size).unwrap();
        let batch = (part(&x), part(&y));
        start += size;
        batch
    });
    cut.collect()
}
