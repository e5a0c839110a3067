//! `candle_nn::linear`. Not for a backward pass, which candle's has: where the input is permuted, the batch is larger than 1 and the
//! device is the CPU, candle 0.11.1 multiplies the wrong elements (`MatMul::f` folds the batch into rows that are not adjacent).

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

#[derive(Clone, Debug)]
pub struct Linear(candle_nn::Linear);

impl Linear {
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self(candle_nn::Linear::new(weight, bias))
    }

    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    pub fn bias(&self) -> Option<&Tensor> {
        self.0.bias()
    }
}

impl Module for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(&x.contiguous()?)
    }
}

pub fn linear(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    candle_nn::linear(in_dim, out_dim, vb).map(Linear)
}

pub fn linear_no_bias(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    candle_nn::linear_no_bias(in_dim, out_dim, vb).map(Linear)
}

pub fn linear_b(in_dim: usize, out_dim: usize, bias: bool, vb: VarBuilder) -> Result<Linear> {
    candle_nn::linear_b(in_dim, out_dim, bias, vb).map(Linear)
}
