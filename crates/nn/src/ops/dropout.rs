use candle_core::{Device, ModuleT, Result, Tensor, bail};

use crate::graph::record_lean;
use crate::kernel::{self, Extent, Kernel, Number, Plan, philox};
use crate::seed::{Draw, draw, is_frozen};

/// Sets each element to zero with probability `drop_p` and multiplies the others by 1 / (1 − `drop_p`), as [`candle_nn::ops::dropout`]
/// (Srivastava et al. 2014).
///
/// The mask comes from a generator that numbers its results, so the backward pass computes it again, and CPU and CUDA give the same
/// bits. Inside of [`nn::seeded`](crate::seeded) the mask depends on the seed and the number of calls before; elsewhere each call
/// draws a fresh seed. Generator: see [`dropout_with_seed`].
///
/// It keeps nothing: neither input nor output.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::ops::dropout;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::ones(1000, DType::F32, &Device::Cpu)?;
/// let y = dropout(&x, 0.75)?.to_vec1::<f32>()?;
/// assert!(y.iter().all(|y| [0., 4.].contains(y))); // 0 or 1 / (1 − 0.75)
/// assert!(dropout(&x, 1.).is_err());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If `drop_p` is not in [0, 1), or for a type other than f64, f32, f16 and bf16.
pub fn dropout(xs: &Tensor, drop_p: f32) -> Result<Tensor> {
    masked(xs, drop_p, draw)
}

/// [`dropout`] with a mask that depends on `seed`, `drop_p` and the number of elements only. One seed for several layers gives
/// them the same mask.
///
/// The generator is Philox4x32-7 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
///
/// It keeps nothing: neither input nor output.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::ops::dropout_with_seed;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::ones(1000, DType::F32, &Device::Cpu)?;
/// let once = dropout_with_seed(&x, 0.5, 7)?.to_vec1::<f32>()?;
/// let again = dropout_with_seed(&x, 0.5, 7)?.to_vec1::<f32>()?;
/// assert_eq!(once, again);
/// assert!(once.iter().all(|y| [0., 2.].contains(y))); // 0 or 1 / (1 − 0.5)
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`dropout`].
pub fn dropout_with_seed(xs: &Tensor, drop_p: f32, seed: u64) -> Result<Tensor> {
    let call = philox::GIVEN_SEED;
    masked(xs, drop_p, || Draw { seed, call })
}

fn masked(xs: &Tensor, drop_p: f32, draw: impl FnOnce() -> Draw) -> Result<Tensor> {
    if !(0. ..1.).contains(&drop_p) {
        bail!("dropout probability has to be in [0, 1), got {drop_p}")
    }
    if drop_p == 0. || is_frozen() {
        return Ok(xs.clone());
    }
    let mask = Mask {
        threshold: (f64::from(drop_p) * 2f64.powi(32)) as u32,
        scale: 1. / (1. - f64::from(drop_p)),
        draw: draw(),
    };
    if !kernel::runs_on(xs.device()) {
        // The mask of this draw, which candle's generators do not know: a recomputed pass needs the same.
        let ones = Tensor::ones(xs.shape(), xs.dtype(), &Device::Cpu)?;
        let [mask] = kernel::run(&mask, [&ones])?;
        return xs * mask.to_device(xs.device())?;
    }
    let [ys] = kernel::run(&mask, [xs])?;
    let backward = move |gradient: Tensor, _| {
        let [dxs] = kernel::run(&mask, [&gradient])?;
        Ok([Some(dxs)])
    };
    record_lean(Mask::NAME, [xs], ys, backward)
}

/// Zero for elements whose random number is below the threshold, and a multiple of the others.
pub struct Mask {
    pub threshold: u32,
    pub scale: f64,
    pub draw: Draw,
}

impl Kernel<1, 1> for Mask {
    const NAME: &'static str = "dropout";

    fn plan(&self, [xs]: [&Tensor; 1]) -> Plan {
        Plan::of_rows(xs, philox::NUMBERS, [Extent::Row(philox::NUMBERS)])
    }

    fn cpu<S: Number>(&self, first: usize, [xs]: [&[S]; 1], [ys]: [&mut [S]; 1]) {
        let Draw { seed, call } = self.draw;
        let scale = S::of(self.scale);
        let groups = xs.chunks(philox::NUMBERS).zip(first as u64..);
        for (ys, (xs, group)) in ys.chunks_mut(philox::NUMBERS).zip(groups) {
            let numbers = philox::numbers(seed, call, group);
            for ((y, x), number) in ys.iter_mut().zip(xs).zip(numbers) {
                let kept = *x * scale;
                *y = if number < self.threshold {
                    S::zero()
                } else {
                    kept
                };
            }
        }
    }
}

/// [`dropout`] as a layer, as [`candle_nn::Dropout`].
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::Dropout;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::ones((2, 3), DType::F32, &Device::Cpu)?;
/// let dropout = Dropout::new(0.1);
/// let evaluated = dropout.forward(&x, false)?; // as it is
/// assert_eq!(evaluated.to_vec2::<f32>()?, [[1.; 3]; 2]);
/// let trained = dropout.forward(&x, true)?; // about one in ten is 0
/// assert_eq!(trained.dims(), [2, 3]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Dropout {
    drop_p: f32,
}

impl Dropout {
    /// A layer that drops elements with this probability. [`forward`](Self::forward) checks it.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::Dropout;
    /// # let x = Tensor::ones(4, DType::F32, &Device::Cpu)?;
    /// let error = Dropout::new(1.5).forward(&x, true).unwrap_err();
    /// assert!(error.to_string().contains("has to be in [0, 1), got 1.5"));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn new(drop_p: f32) -> Dropout {
        Self { drop_p }
    }

    /// [`dropout`] if `train`, else `xs`.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::Dropout;
    ///
    /// let x = Tensor::ones(1000, DType::F32, &Device::Cpu)?;
    /// let dropout = Dropout::new(0.5);
    /// assert_eq!(dropout.forward(&x, false)?.to_vec1::<f32>()?, [1.; 1000]);
    /// let trained = dropout.forward(&x, true)?.to_vec1::<f32>()?;
    /// assert!(trained.contains(&0.) && trained.contains(&2.)); // about as many of each
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`dropout`].
    pub fn forward(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        match train {
            true => dropout(xs, self.drop_p),
            false => Ok(xs.clone()),
        }
    }
}

impl ModuleT for Dropout {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        self.forward(xs, train)
    }
}
