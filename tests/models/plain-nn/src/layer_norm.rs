//! `candle_nn::layer_norm`, differentiable: candle's own composition, which `LayerNorm` takes where there is no fused kernel.

use candle_core::{D, DType, Module, Result, Tensor};
pub use candle_nn::layer_norm::LayerNormConfig;
use candle_nn::{Init, VarBuilder};

#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Option<Tensor>,
    remove_mean: bool,
    eps: f64,
}

impl LayerNorm {
    pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Self {
        Self {
            weight,
            bias: Some(bias),
            remove_mean: true,
            eps,
        }
    }

    pub fn new_no_bias(weight: Tensor, eps: f64) -> Self {
        Self {
            weight,
            bias: None,
            remove_mean: true,
            eps,
        }
    }

    pub fn rms_norm(weight: Tensor, eps: f64) -> Self {
        Self {
            weight,
            bias: None,
            remove_mean: false,
            eps,
        }
    }

    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    pub fn eps(&self) -> f64 {
        self.eps
    }

    pub fn remove_mean(&self) -> bool {
        self.remove_mean
    }
}

impl Module for LayerNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let dtype = xs.dtype();
        let wide = if matches!(dtype, DType::F16 | DType::BF16) {
            DType::F32
        } else {
            dtype
        };
        let mut xs = xs.to_dtype(wide)?;
        if self.remove_mean {
            xs = xs.broadcast_sub(&xs.mean_keepdim(D::Minus1)?)?;
        }
        let scale = (xs.sqr()?.mean_keepdim(D::Minus1)? + self.eps)?.sqrt()?;
        let xs = xs
            .broadcast_div(&scale)?
            .to_dtype(dtype)?
            .broadcast_mul(&self.weight)?;
        match &self.bias {
            Some(bias) => xs.broadcast_add(bias),
            None => Ok(xs),
        }
    }
}

#[derive(Clone, Debug)]
pub struct RmsNorm(LayerNorm);

impl RmsNorm {
    pub fn new(weight: Tensor, eps: f64) -> Self {
        Self(LayerNorm::rms_norm(weight, eps))
    }

    pub fn into_inner(self) -> LayerNorm {
        self.0
    }

    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    pub fn forward_diff(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

/// Checkpoints converted from old ones call them gamma and beta.
pub fn layer_norm<C: Into<LayerNormConfig>>(
    size: usize,
    config: C,
    vb: VarBuilder,
) -> Result<LayerNorm> {
    let config = config.into();
    let name = |new, old| {
        if !vb.contains_tensor(new) && vb.contains_tensor(old) {
            old
        } else {
            new
        }
    };
    let weight = vb.get_with_hints(size, name("weight", "gamma"), Init::Const(1.0))?;
    let bias = config
        .affine
        .then(|| vb.get_with_hints(size, name("bias", "beta"), Init::Const(0.0)))
        .transpose()?;
    Ok(LayerNorm {
        weight,
        bias,
        remove_mean: config.remove_mean,
        eps: config.eps,
    })
}

pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder) -> Result<LayerNorm> {
    layer_norm(
        size,
        LayerNormConfig {
            eps,
            remove_mean: true,
            affine: false,
        },
        vb,
    )
}

pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<RmsNorm> {
    Ok(RmsNorm(layer_norm(
        size,
        LayerNormConfig {
            eps,
            remove_mean: false,
            affine: false,
        },
        vb,
    )?))
}
