//! Batch normalization, as [`mod@candle_nn::batch_norm`], with a backward pass that keeps little memory.

mod normalize;

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
pub use candle_nn::batch_norm::BatchNormConfig;

/// Normalization of channels over a batch ([Ioffe and Szegedy, 2015](https://arxiv.org/abs/1502.03167)), as [`candle_nn::BatchNorm`].
///
/// The input has the shape (batch, channels, …) with at least two dimensions and any strides. The statistics of f16 and bf16 are
/// computed in f32. It keeps its output, and three numbers for each channel.
///
/// In training it replaces the running statistics, which are Vars, after the output is computed. Name them as buffers of a trainer,
/// so that a retried micro-batch does not count twice.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    inner: candle_nn::BatchNorm,
    remove_mean: bool,
}

/// A constructor of candle's layer.
macro_rules! constructor {
    ($(#[$doc:meta])* $name:ident($($argument:ident: $kind:ty),+)) => {
        $(#[$doc])*
        pub fn $name($($argument: $kind),+) -> Result<Self> {
            Ok(Self {
                inner: candle_nn::BatchNorm::$name($($argument),+)?,
                remove_mean: true,
            })
        }
    };
}

impl BatchNorm {
    constructor! {
        /// With a momentum of 0.1. All tensors have `num_features` elements, the number of channels.
        ///
        /// # Errors
        /// If a tensor has another shape, or `eps` is negative.
        new(num_features: usize, running_mean: Tensor, running_var: Tensor, weight: Tensor, bias: Tensor, eps: f64)
    }

    constructor! {
        /// [`new`](Self::new) without weight and bias.
        ///
        /// # Errors
        /// As [`new`](Self::new).
        new_no_bias(num_features: usize, running_mean: Tensor, running_var: Tensor, eps: f64)
    }

    constructor! {
        /// [`new`](Self::new) with a momentum from 0 to 1: the part of a new running statistic that comes from the batch.
        ///
        /// # Errors
        /// As [`new`](Self::new), or if the momentum is out of range.
        new_with_momentum(
            num_features: usize,
            running_mean: Tensor,
            running_var: Tensor,
            weight: Tensor,
            bias: Tensor,
            eps: f64,
            momentum: f64
        )
    }

    constructor! {
        /// [`new_with_momentum`](Self::new_with_momentum) without weight and bias.
        ///
        /// # Errors
        /// As [`new_with_momentum`](Self::new_with_momentum).
        new_no_bias_with_momentum(num_features: usize, running_mean: Tensor, running_var: Tensor, eps: f64, momentum: f64)
    }
}

/// Creates a [`BatchNorm`] from the tensors `running_mean`, `running_var` and, if `config.affine`, `weight` and `bias`.
///
/// # Errors
/// If `vb` has no such tensors of `num_features` elements, or `config.eps` is negative.
pub fn batch_norm<C: Into<BatchNormConfig>>(
    num_features: usize,
    config: C,
    vb: VarBuilder,
) -> Result<BatchNorm> {
    let config = config.into();
    Ok(BatchNorm {
        inner: candle_nn::batch_norm(num_features, config, vb)?,
        remove_mean: config.remove_mean,
    })
}
