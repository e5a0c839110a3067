//! Promise 11, gradients arrive, and are right: a trainable parameter that receives no gradient is an error before the first update, by
//! name; `nn::audit` finds one that receives a wrong gradient, by the loss's slopes.

mod checked;
mod first_update;
mod right;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::{AccumulatingTrainer, AdamW, AdaptiveTrainer, Error, Result};
use candle_nn::ops::{softmax, softmax_last_dim};
use candle_nn::{
    BatchNorm, Linear, Module, ModuleT, RmsNorm, VarBuilder, VarMap, batch_norm, linear, rms_norm,
};

use crate::support::{settle, wave};

/// What lies between the first layers and the loss.
#[derive(Debug, Clone, Copy)]
enum Cut {
    /// Differentiable operations only.
    Nothing,
    Softmax,
    RmsNorm,
    Detach,
    /// The forward pass leaves the first layers out.
    Unused,
}

const FIRST: [&str; 5] = [
    "batch_norm.bias",
    "batch_norm.weight",
    "hidden.bias",
    "hidden.weight",
    "norm.weight",
];

impl Cut {
    const ALL: [Self; 4] = [Self::Softmax, Self::RmsNorm, Self::Detach, Self::Unused];

    /// The parameters that it cuts off.
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Nothing => &[],
            Self::Detach => &FIRST[2..4],
            _ => &FIRST,
        }
    }
}

struct Model {
    varmap: VarMap,
    vars: Vec<Var>,
    hidden: Linear,
    batch_norm: BatchNorm,
    norm: RmsNorm,
    head: Linear,
}

impl Model {
    fn new() -> Self {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let batch_norm = batch_norm(4, 1e-5, vb.pp("batch_norm")).unwrap();
        let (hidden, head) = (linear(4, 4, vb.pp("hidden")), linear(4, 2, vb.pp("head")));
        let norm = rms_norm(4, 1e-5, vb.pp("norm")).unwrap();
        Self {
            vars: settle(&varmap),
            varmap,
            hidden: hidden.unwrap(),
            batch_norm,
            norm,
            head: head.unwrap(),
        }
    }

    fn loss(&self, x: &Tensor, cut: Cut) -> candle_core::Result<Tensor> {
        let mut y = self.hidden.forward(x)?;
        if let Cut::Detach = cut {
            y = y.detach();
        }
        // Its running statistics change in each forward pass.
        y = self.batch_norm.forward_t(&y, true)?.contiguous()?;
        y = match cut {
            Cut::RmsNorm => self.norm.forward(&y)?,
            _ => self.norm.forward_diff(&y)?,
        };
        y = match cut {
            Cut::Softmax => softmax_last_dim(&y)?,
            Cut::Unused => x.clone(),
            _ => softmax(&y, 1)?,
        };
        self.head.forward(&y)?.sqr()?.mean_all()
    }

    fn adamw(&self) -> AdamW {
        let builder = AdamW::builder(&self.varmap).learning_rate(0.1);
        builder.build().unwrap()
    }

    fn statistics(&self) -> [&Tensor; 2] {
        [
            self.batch_norm.running_mean(),
            self.batch_norm.running_var(),
        ]
    }
}

fn data(samples: usize) -> Tensor {
    let x = wave(samples * 4, 3, DType::F32).unwrap();
    x.reshape((samples, 4)).unwrap()
}

/// A way to train.
trait Trainer: Sized {
    fn new(model: &Model) -> Self;
    /// Does all that belongs to one update.
    fn train(&mut self, model: &Model, cut: Cut) -> Result<()>;
    fn updates(&self) -> u64;
    fn optimizer(&self) -> &AdamW;
}

impl Trainer for AdaptiveTrainer<AdamW> {
    fn new(model: &Model) -> Self {
        let builder = Self::builder(model.adamw()).buffers(model.statistics());
        builder.build().unwrap()
    }
    fn train(&mut self, model: &Model, cut: Cut) -> Result<()> {
        self.step(&data(6), |x, _| model.loss(&x, cut)).map(|_| ())
    }
    fn updates(&self) -> u64 {
        self.updates()
    }
    fn optimizer(&self) -> &AdamW {
        self.optimizer()
    }
}

impl Trainer for AccumulatingTrainer<AdamW> {
    fn new(model: &Model) -> Self {
        let builder = Self::builder(model.adamw(), 2).buffers(model.statistics());
        builder.build().unwrap()
    }
    fn train(&mut self, model: &Model, cut: Cut) -> Result<()> {
        let first = self.step(&data(6), |x, _| model.loss(&x, cut))?;
        assert!(first.is_none());
        let second = self.step(&data(3), |x, _| model.loss(&x, cut));
        if let Err(error) = &second {
            // As any other error of the last batch, it takes the earlier ones along.
            assert!(
                matches!(error, Error::WindowLost(lost) if lost.samples == 6),
                "{error}"
            );
        }
        second.map(|_| ())
    }
    fn updates(&self) -> u64 {
        (**self).updates()
    }
    fn optimizer(&self) -> &AdamW {
        (**self).optimizer()
    }
}
