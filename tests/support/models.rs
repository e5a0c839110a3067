//! Small real models.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::testing::probe;
use candle_nn::{
    BatchNorm, Conv2d, Conv2dConfig, Linear, Module, ModuleT, VarBuilder, VarMap, batch_norm,
    conv2d, linear,
};

use super::{settle, wave};

/// A two-layer perceptron from 6 numbers to 3.
pub struct Mlp {
    pub varmap: VarMap,
    pub vars: Vec<Var>,
    first: Linear,
    second: Linear,
}

impl Mlp {
    pub fn new(dtype: DType) -> Self {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, dtype, &Device::Cpu);
        let first = linear(6, 8, vb.pp("first")).unwrap();
        let second = linear(8, 3, vb.pp("second")).unwrap();
        Self {
            vars: settle(&varmap),
            varmap,
            first,
            second,
        }
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.second.forward(&self.first.forward(x)?.tanh()?)
    }

    /// Mean over samples of the squared distance.
    pub fn loss(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        (self.forward(x)? - y)?.sqr()?.sum(1)?.mean_all()
    }

    /// The same loss with a point of failure after each layer, forward and backward.
    pub fn probed_loss(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let hidden = probe(&self.first.forward(x)?.tanh()?)?;
        let output = probe(&self.second.forward(&hidden)?)?;
        probe(&(output - y)?.sqr()?.sum(1)?.mean_all()?)
    }

    pub fn data(samples: usize, dtype: DType) -> (Tensor, Tensor) {
        let x = wave(samples * 6, 50, dtype).unwrap();
        let y = wave(samples * 3, 60, dtype).unwrap();
        (
            x.reshape((samples, 6)).unwrap(),
            y.reshape((samples, 3)).unwrap(),
        )
    }
}

/// Convolution, BatchNorm, ReLU, pooling, linear: 8 × 8 pictures to 4 classes.
pub struct ConvNet {
    pub vars: Vec<Var>,
    pub norm: BatchNorm,
    conv: Conv2d,
    head: Linear,
}

impl ConvNet {
    pub fn new() -> Self {
        Self::on(&Device::Cpu)
    }

    pub fn on(device: &Device) -> Self {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, device);
        let config = Conv2dConfig {
            padding: 1,
            ..Default::default()
        };
        let conv = conv2d(1, 4, 3, config, vb.pp("conv")).unwrap();
        let norm = batch_norm(4, 1e-5, vb.pp("norm")).unwrap();
        let head = linear(4 * 16, 4, vb.pp("head")).unwrap();
        let vars = settle(&varmap);
        let ones = Tensor::ones(4, DType::F32, device).unwrap();
        let variance = Var::from_tensor(norm.running_var()).unwrap();
        variance.set(&ones).unwrap();
        Self {
            vars,
            norm,
            conv,
            head,
        }
    }

    /// The Vars that have gradients: not the running statistics.
    pub fn trained(&self) -> Vec<Var> {
        let statistics = [self.norm.running_mean().id(), self.norm.running_var().id()];
        let trained = self
            .vars
            .iter()
            .filter(|var| !statistics.contains(&var.id()));
        trained.cloned().collect()
    }

    pub fn loss(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let x = self.norm.forward_t(&self.conv.forward(x)?, true)?.relu()?;
        let x = x.avg_pool2d(2)?.flatten_from(1)?;
        candle_nn::loss::cross_entropy(&self.head.forward(&x)?, y)
    }

    pub fn data(samples: usize) -> (Tensor, Tensor) {
        let x = wave(samples * 64, 9, DType::F32).unwrap();
        let y = Tensor::from_iter((0..samples).map(|i| (i % 4) as u32), &Device::Cpu).unwrap();
        (x.reshape((samples, 1, 8, 8)).unwrap(), y)
    }
}
