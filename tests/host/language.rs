//! A small language model, texts for it, and a trainer of it.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::{AdaptiveTrainer, DeviceMemory, Foreign};
use candle_nn::{SGD, VarBuilder, VarMap};

use crate::support::transformer::{Config, Transformer};
use crate::support::{settle, sgd};

pub fn language() -> (Transformer, Vec<Var>) {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let config = Config {
        context: 32,
        width: 32,
        heads: 2,
        layers: 1,
    };
    (Transformer::new(config, vb).unwrap(), settle(&varmap))
}

/// Trains all Vars by plain gradient descent within this memory's limit.
pub fn by_sgd(vars: &[Var], memory: &DeviceMemory) -> AdaptiveTrainer<Foreign<SGD>> {
    let builder = AdaptiveTrainer::builder(sgd(vars, 0.01));
    builder.memory(memory).build().unwrap()
}

pub fn text(samples: usize, length: usize) -> (Tensor, Tensor) {
    let text = |shift: u32| {
        let bytes = (0..(samples * length) as u32).map(|i| (i * 31 + shift) % 256);
        let bytes = Tensor::from_iter(bytes, &Device::Cpu).unwrap();
        bytes.reshape((samples, length)).unwrap()
    };
    (text(0), text(31))
}
