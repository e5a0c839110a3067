//! `candle_nn` with backward passes that keep little memory: the package `candle-headroom-nn`.
//!
//! It has candle_nn's names, types and signatures, so one line makes a model file trainable:
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_headroom::nn as candle_nn; // the one line
//! use candle_nn::{Module, VarBuilder, VarMap, linear, rms_norm};
//!
//! # fn main() -> candle_core::Result<()> {
//! let varmap = VarMap::new();
//! let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
//! let (hidden, norm) = (linear(16, 32, vb.pp("hidden"))?, rms_norm(32, 1e-5, vb.pp("norm"))?);
//! let x = Tensor::randn(0f32, 1., (8, 16), &Device::Cpu)?; // [samples, features]
//! let gradients = norm.forward(&hidden.forward(&x)?)?.sum_all()?.backward()?;
//! assert!(gradients.get(hidden.weight()).is_some());
//! # Ok(())
//! # }
//! ```
//!
//! [`candle_headroom_nn`] lists what is replaced and what is new: [`attention()`], [`loss::linear_cross_entropy`], [`recompute()`],
//! [`audit()`], [`seeded`] randomness. Here [`AdamW`] and [`SGD`] are this crate's optimizers, whose updates are atomic; they implement
//! candle_nn's [`Optimizer`]. See [the models that were tried](crate::_documentation::reference::models) and
//! [the bytes that each layer keeps](crate::_documentation::explanation::layers).

#[doc(inline)]
pub use candle_headroom_nn::*;

pub use crate::optim::{AdamW, Sgd as SGD};
