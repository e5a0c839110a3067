//! Optimizers that update all parameters in place or none, without temporaries.
//!
//! [`AdamW`], [`Adam`], [`Sgd`] and [`Lion`] are the rules of PyTorch and of the papers in one implementation, [`Fused`]. It guarantees:
//!
//! - **An update is atomic.** [`Commit::commit`] checks shapes, types, devices and the learning rate before it changes the first parameter.
//!   After an error parameters, state and counters are what they were, and the update can be tried again. The exceptions are a lost device
//!   and a panic in a thread of the update.
//! - **An update allocates nothing**, so it cannot run out of memory. [`build`](FusedBuilder::build) allocates all state, and
//!   [`Fused::set_group`] that of a group it thaws.
//! - **A gradient that is not finite changes nothing**, if clipping by norm, a loss scale or `skip_non_finite` is on: the step is skipped and
//!   counted in [`Progress`].
//! - **State belongs to names.** Names of parameters are distinct, and [`StateDict`] has each tensor under the parameter's name and
//!   PyTorch's name for it, so a state fits whatever the order of the parameters. Only Vars without a name are known by their place.
//!
//! [`Commit`] is all that a trainer asks of an optimizer. [`Foreign`] implements it for candle's own optimizers, which cannot give these
//! guarantees: they update Var by Var, allocate as they go, and their state is not saved. [`Both`] makes one optimizer of two, [`Ema`] adds
//! averages of the parameters, and [`LearningRate`] is a function of the step.

mod blend;
mod both;
#[allow(unsafe_code, reason = "a conversion without a branch, and AVX2")]
mod coded;
mod commit;
mod cpu;
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "launches kernels")]
mod cuda;
mod ema;
mod foreign;
mod fused;
mod group;
mod rule;
mod schedule;
mod state_dict;

pub use candle_nn::ParamsAdamW;

pub(crate) use blend::blend;
pub use both::Both;
pub use commit::{Commit, Committed};
pub use ema::Ema;
pub use foreign::Foreign;
pub(crate) use fused::check_shape;
pub use fused::{Fused, FusedBuilder, LossScale, Progress};
#[doc(hidden)]
pub use group::Shard;
pub use group::{Group, GroupOptions, Moments, Parameter};
pub use rule::{Algorithm, ParamsAdam, ParamsLion, ParamsSgd};
pub use schedule::{LearningRate, LearningRateBuilder};
pub use state_dict::StateDict;
pub(crate) use state_dict::{
    Own, PIECES, STEP, entry, file_header, place_in_file, read_pieces, take_pieces,
};

/// Adam with decoupled weight decay (Loshchilov & Hutter 2017, arXiv 1711.05101), as in PyTorch and candle; takes candle's
/// [`ParamsAdamW`].
///
/// With the gradient g at step t, counted from 1:
///
/// ```text
/// m ← β₁·m + (1 − β₁)·g
/// v ← β₂·v + (1 − β₂)·g²
/// p ← (1 − lr·λ)·p − lr · (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)
/// ```
///
/// The state takes 8 bytes per element: 4 with [`moments`](FusedBuilder::moments) in bf16, about 2 in 8 bits.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::AdamW;
/// use candle_headroom::optim::Commit;
///
/// let w = Var::new(3f32, &Device::Cpu)?;
/// let mut optimizer = AdamW::builder(vec![w.clone()]).learning_rate(0.1).weight_decay(0.).build()?;
/// optimizer.commit(&w.sqr()?.backward()?)?;
/// // The first step has the length of the learning rate, whatever the gradient.
/// assert!((w.to_scalar::<f32>()? - 2.9).abs() < 1e-5);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub type AdamW = Fused<ParamsAdamW>;

/// Adam (Kingma & Ba 2014, arXiv 1412.6980), with an L2 penalty, as in PyTorch.
///
/// As [`AdamW`] with λ = 0 and the gradient g + λ·p, so that the penalty is divided by √v too.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::optim::{Adam, Commit};
///
/// let w = Var::new(3f32, &Device::Cpu)?;
/// let mut optimizer = Adam::builder(vec![w.clone()]).learning_rate(0.1).build()?;
/// optimizer.commit(&w.sqr()?.backward()?)?;
/// // The first step has the length of the learning rate, as AdamW's.
/// assert!((w.to_scalar::<f32>()? - 2.9).abs() < 1e-5);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub type Adam = Fused<ParamsAdam>;

/// Stochastic gradient descent with momentum, Nesterov momentum and an L2 penalty, as in PyTorch.
///
/// With the gradient g, to which λ·p was added:
///
/// ```text
/// b ← μ·b + (1 − dampening)·g, in the first step g
/// p ← p − lr·b, or with Nesterov momentum p − lr·(g + μ·b)
/// ```
///
/// Without momentum it has no state and moves p by −lr·g.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::Sgd;
/// use candle_headroom::optim::{Commit, ParamsSgd};
///
/// let w = Var::new(3f32, &Device::Cpu)?;
/// let params = ParamsSgd { momentum: 0.9, ..ParamsSgd::default() };
/// let mut optimizer = Sgd::builder(vec![w.clone()]).params(params).learning_rate(0.1).build()?;
/// optimizer.commit(&w.sqr()?.backward()?)?;
/// assert!((w.to_scalar::<f32>()? - 2.4).abs() < 1e-5); // 3 − 0.1 · 6
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub type Sgd = Fused<ParamsSgd>;

/// Lion (Chen et al. 2023, arXiv 2302.06675): the sign of a momentum, with half of AdamW's state.
///
/// With the gradient g:
///
/// ```text
/// p ← (1 − lr·λ)·p − lr · sign(β₁·m + (1 − β₁)·g)
/// m ← β₂·m + (1 − β₂)·g
/// ```
///
/// The state takes 4 bytes per element.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::optim::{Commit, Lion};
///
/// let w = Var::new(3f32, &Device::Cpu)?;
/// let mut optimizer = Lion::builder(vec![w.clone()]).learning_rate(0.01).build()?;
/// optimizer.commit(&w.sqr()?.backward()?)?;
/// assert!((w.to_scalar::<f32>()? - 2.99).abs() < 1e-5);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub type Lion = Fused<ParamsLion>;
