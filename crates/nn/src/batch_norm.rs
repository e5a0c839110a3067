//! Batch normalization, as [`mod@candle_nn::batch_norm`], with a backward pass that keeps little memory.
//!
//! In training a sample's value depends on the other samples, so a batch that is cut into micro-batches is normalized by other
//! statistics than the whole batch. In evaluation it does not. A [`recompute`](crate::recompute()) region updates the running
//! statistics once, although it runs twice.

use candle_core::{Result, Tensor, Var, bail};
pub use candle_nn::batch_norm::BatchNormConfig;
use candle_nn::{ModuleT, VarBuilder};

use super::kernel::{dense, runs_on, sum_type};
use super::norm::{Cells, Groups, Source, Statistics};
use super::recompute::is_recomputing;

const NAME: &str = "batch-norm";

/// Normalization of channels over a batch ([Ioffe and Szegedy, 2015](https://arxiv.org/abs/1502.03167)), as [`candle_nn::BatchNorm`].
///
/// The input has the shape (batch, channels, …) with at least two dimensions and any strides. The statistics of f16 and bf16 are
/// computed in f32. It keeps its output, and three numbers for each channel.
///
/// In training it replaces the running statistics, which are Vars, after the output is computed. Name them as buffers of a trainer,
/// so that a retried micro-batch does not count twice.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::{ModuleT, VarBuilder, VarMap, batch_norm};
///
/// # fn main() -> candle_core::Result<()> {
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let norm = batch_norm(3, 1e-5, vb)?;
/// let x = Tensor::randn(5f32, 2., (8, 3, 4, 4), &Device::Cpu)?; // [batch, channels, height, width]
/// let trained = norm.forward_t(&x, true)?; // by the statistics of these 8 samples
/// assert!(trained.mean_all()?.to_scalar::<f32>()?.abs() < 1e-4);
/// let evaluated = norm.forward_t(&x, false)?; // by the running ones
/// assert_eq!(evaluated.dims(), x.dims());
/// # Ok(())
/// # }
/// ```
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
        /// ```
        /// use candle_core::{Device, Tensor};
        /// use candle_headroom_nn::{BatchNorm, ModuleT};
        ///
        /// let channel = |value: f32| Tensor::new(&[value], &Device::Cpu);
        /// let norm = BatchNorm::new(1, channel(1.)?, channel(4.)?, channel(10.)?, channel(5.)?, 0.)?;
        /// let x = Tensor::new(&[[3f32], [1.]], &Device::Cpu)?; // [samples, channels]
        /// let y = norm.forward_t(&x, false)?; // (x − 1) / √4 · 10 + 5
        /// assert_eq!(y.to_vec2::<f32>()?, [[15.], [5.]]);
        /// # Ok::<(), candle_core::Error>(())
        /// ```
        ///
        /// # Errors
        /// If a tensor has another shape, or `eps` is negative.
        new(num_features: usize, running_mean: Tensor, running_var: Tensor, weight: Tensor, bias: Tensor, eps: f64)
    }

    constructor! {
        /// [`new`](Self::new) without weight and bias.
        ///
        /// ```
        /// use candle_core::{Device, Tensor};
        /// use candle_headroom_nn::{BatchNorm, ModuleT};
        ///
        /// let channel = |value: f32| Tensor::new(&[value], &Device::Cpu);
        /// let norm = BatchNorm::new_no_bias(1, channel(1.)?, channel(4.)?, 0.)?;
        /// let x = Tensor::new(&[[3f32], [1.]], &Device::Cpu)?; // [samples, channels]
        /// assert_eq!(norm.forward_t(&x, false)?.to_vec2::<f32>()?, [[1.], [0.]]);
        /// # Ok::<(), candle_core::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`new`](Self::new).
        new_no_bias(num_features: usize, running_mean: Tensor, running_var: Tensor, eps: f64)
    }

    constructor! {
        /// [`new`](Self::new) with a momentum from 0 to 1: the part of a new running statistic that comes from the batch.
        ///
        /// ```
        /// use candle_core::{Device, Tensor};
        /// use candle_headroom_nn::{BatchNorm, ModuleT};
        ///
        /// let channel = |value: f32| Tensor::new(&[value], &Device::Cpu);
        /// let (mean, variance) = (channel(0.)?, channel(1.)?);
        /// let norm = BatchNorm::new_with_momentum(1, mean, variance, channel(1.)?, channel(0.)?, 1e-5, 1.)?;
        /// norm.forward_t(&Tensor::new(&[[1f32], [3.]], &Device::Cpu)?, true)?;
        /// assert_eq!(norm.running_mean().to_vec1::<f32>()?, [2.]); // that of the batch
        /// assert_eq!(norm.running_var().to_vec1::<f32>()?, [2.]); // unbiased
        /// # Ok::<(), candle_core::Error>(())
        /// ```
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
        /// ```
        /// use candle_core::{Device, Tensor};
        /// use candle_headroom_nn::{BatchNorm, ModuleT};
        ///
        /// let channel = |value: f32| Tensor::new(&[value], &Device::Cpu);
        /// let norm = BatchNorm::new_no_bias_with_momentum(1, channel(0.)?, channel(1.)?, 1e-5, 0.5)?;
        /// norm.forward_t(&Tensor::new(&[[1f32], [3.]], &Device::Cpu)?, true)?;
        /// assert_eq!(norm.running_mean().to_vec1::<f32>()?, [1.]); // halfway from 0 to 2
        /// # Ok::<(), candle_core::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`new_with_momentum`](Self::new_with_momentum).
        new_no_bias_with_momentum(num_features: usize, running_mean: Tensor, running_var: Tensor, eps: f64, momentum: f64)
    }
}

impl BatchNorm {
    /// Normalizes with the statistics of the batch and updates the running ones. The running variance takes the unbiased variance:
    /// n / (n − 1) times that of the batch, for n values of each channel.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::BatchNorm;
    ///
    /// let channel = |value: f32| Tensor::new(&[value], &Device::Cpu);
    /// let norm = BatchNorm::new_no_bias(1, channel(0.)?, channel(1.)?, 0.)?;
    /// let x = Tensor::new(&[[1f32], [3.]], &Device::Cpu)?; // mean 2, variance 1
    /// assert_eq!(norm.forward_train(&x)?.to_vec2::<f32>()?, [[-1.], [1.]]);
    /// let error = norm.forward_train(&x.narrow(0, 0, 1)?).unwrap_err();
    /// assert!(error.to_string().contains("at least 2 values for each channel"));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the input has fewer than two dimensions, other channels, or only one value for each channel, which has no variance (candle
    /// makes the running variance NaN there).
    pub fn forward_train(&self, x: &Tensor) -> Result<Tensor> {
        let groups = self.groups(x)?;
        let len = groups.cells.len();
        if len < 2 {
            bail!(
                "batch-norm in training needs at least 2 values for each channel, got {:?}",
                x.shape()
            )
        }
        if !runs_on(x.device()) {
            let (mean, variance) = (self.running_mean().copy()?, self.running_var().copy()?);
            let ys = self.inner.forward_t(x, true)?;
            if is_recomputing() {
                // The first run has updated them.
                Var::from_tensor(self.running_mean())?.set(&mean)?;
                Var::from_tensor(self.running_var())?.set(&variance)?;
            }
            return Ok(ys);
        }
        let contiguous = dense(NAME, &x.detach())?;
        let statistics = groups.statistics(&contiguous, self.eps(), self.remove_mean)?;
        let unbiased = (&statistics.variance * (len as f64 / (len as f64 - 1.)))?;
        let mean = self.moved(self.running_mean(), &statistics.mean)?;
        let variance = self.moved(self.running_var(), &unbiased)?;
        let parameters = self.weight_and_bias();
        let ys = groups.normalize(NAME, x, &contiguous, statistics, parameters)?;
        if is_recomputing() {
            return Ok(ys); // the first run has updated them
        }
        if self.remove_mean {
            Var::from_tensor(self.running_mean())?.set(&mean)?;
        }
        Var::from_tensor(self.running_var())?.set(&variance)?;
        Ok(ys)
    }

    fn forward_eval(&self, x: &Tensor) -> Result<Tensor> {
        let groups = self.groups(x)?;
        if !runs_on(x.device()) {
            return self.inner.forward_t(x, false);
        }
        let wide = |running: &Tensor| running.detach().to_dtype(sum_type(x.dtype()));
        // A copy: training may replace the running mean before the backward pass.
        let (mean, variance) = (
            wide(self.running_mean())?.copy()?,
            wide(self.running_var())?,
        );
        let statistics = Statistics::new(&mean, &variance, self.eps(), Source::Constant)?;
        let contiguous = dense(NAME, &x.detach())?;
        groups.normalize(NAME, x, &contiguous, statistics, self.weight_and_bias())
    }

    /// A running statistic, moved towards that of a batch.
    fn moved(&self, running: &Tensor, of_batch: &Tensor) -> Result<Tensor> {
        let of_batch = of_batch.flatten_all()?.to_dtype(running.dtype())?;
        let kept = (running.detach() * (1. - self.momentum()))?;
        kept + (of_batch * self.momentum())?
    }

    /// Each channel is a group by itself.
    fn groups(&self, x: &Tensor) -> Result<Groups> {
        let channels = self.running_mean().dim(0)?;
        match x.dims() {
            [outer, found, inner @ ..] if *found == channels => Ok(Groups {
                cells: Cells {
                    outer: *outer,
                    cells: channels,
                    inner: inner.iter().product(),
                },
                members: 1,
                parameters: channels,
            }),
            [_, _, ..] => bail!(
                "batch-norm: expected {channels} channels, got {:?}",
                x.shape()
            ),
            _ => bail!(
                "batch-norm: the input needs at least 2 dimensions, got {:?}",
                x.shape()
            ),
        }
    }
}

/// candle's layer, which other functions of candle ask for, such as [`Conv2d::absorb_bn`](candle_nn::Conv2d::absorb_bn).
impl std::ops::Deref for BatchNorm {
    type Target = candle_nn::BatchNorm;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl ModuleT for BatchNorm {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        match train {
            true => self.forward_train(x),
            false => self.forward_eval(x),
        }
    }
}

/// Creates a [`BatchNorm`] from the tensors `running_mean`, `running_var` and, if `config.affine`, `weight` and `bias`.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom_nn::{BatchNormConfig, VarBuilder, VarMap, batch_norm};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let config = BatchNormConfig { momentum: 0.01, affine: false, ..Default::default() };
/// let norm = batch_norm(3, config, vb)?; // or 1e-5 in place of `config`
/// assert_eq!((norm.momentum(), norm.running_mean().dims()), (0.01, &[3][..]));
/// assert!(norm.weight_and_bias().is_none());
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// If `vb` has no such tensors of `num_features` elements, `config.eps` is negative, or `config.momentum` is not from 0 to 1.
pub fn batch_norm<C: Into<BatchNormConfig>>(
    num_features: usize,
    config: C,
    vb: VarBuilder,
) -> Result<BatchNorm> {
    let config = config.into();
    // candle's function does not look, though its constructors do.
    if !(0. ..=1.).contains(&config.momentum) {
        bail!(
            "batch-norm: the momentum must be from 0 to 1, got {}",
            config.momentum
        );
    }
    Ok(BatchNorm {
        inner: candle_nn::batch_norm(num_features, config, vb)?,
        remove_mean: config.remove_mean,
    })
}
