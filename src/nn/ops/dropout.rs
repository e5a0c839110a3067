use candle_core::{ModuleT, Result, Shape, Tensor, bail};
use num_traits::Zero;

use crate::nn::graph::record_lean;
use crate::nn::kernel::{self, Element, Functions, Kernel, by_rows, philox};
use crate::nn::seed::{Draw, draw};

/// Sets each element to zero with probability `drop_p` and multiplies the others by 1 / (1 − `drop_p`), as [`candle_nn::ops::dropout`].
///
/// The mask comes from a generator that numbers its results, so the backward pass computes it again, and CPU and CUDA give the same
/// bits. Inside of [`nn::seeded`](crate::nn::seeded) the mask depends on the seed and the number of calls before; elsewhere each call
/// draws a fresh seed. Generator: see [`dropout_with_seed`].
///
/// It keeps nothing: neither input nor output.
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
/// # Errors
/// As [`dropout`].
pub fn dropout_with_seed(xs: &Tensor, drop_p: f32, seed: u64) -> Result<Tensor> {
    masked(xs, drop_p, || Draw { seed, call: 0 })
}

fn masked(xs: &Tensor, drop_p: f32, draw: impl FnOnce() -> Draw) -> Result<Tensor> {
    if !(0. ..1.).contains(&drop_p) {
        bail!("dropout probability has to be in [0, 1), got {drop_p}")
    }
    if drop_p == 0. {
        return Ok(xs.clone());
    }
    let mask = Mask {
        threshold: (f64::from(drop_p) * 2f64.powi(32)) as u32,
        scale: 1. / (1. - f64::from(drop_p)),
        draw: draw(),
    };
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

    type Output<T: Element> = T;

    fn shapes(&self, [xs]: [&Tensor; 1]) -> Result<[Shape; 1]> {
        Ok([xs.shape().clone()])
    }

    fn cpu<T: Element>(&self, [xs]: [&[T]; 1], [ys]: [&mut [T]; 1]) -> Result<()> {
        let Draw { seed, call } = self.draw;
        let scale = T::Sum::of(self.scale);
        by_rows(ys, philox::NUMBERS, |first, ys| {
            let groups = xs.chunks(philox::NUMBERS).skip(first).zip(first as u64..);
            for (ys, (xs, group)) in ys.chunks_mut(philox::NUMBERS).zip(groups) {
                let numbers = philox::numbers(seed, call, group);
                for ((y, x), number) in ys.iter_mut().zip(xs).zip(numbers) {
                    let kept = x.widen() * scale;
                    *y = T::narrow(if number < self.threshold {
                        T::Sum::zero()
                    } else {
                        kept
                    });
                }
            }
        });
        Ok(())
    }

    fn composed(&self, [xs]: [&Tensor; 1]) -> Result<[Tensor; 1]> {
        let ones = Tensor::ones(xs.shape(), xs.dtype(), &candle_core::Device::Cpu)?;
        let [mask] = kernel::run(self, [&ones])?;
        Ok([(xs * mask.to_device(xs.device())?)?])
    }
}

/// [`dropout`] as a layer, as [`candle_nn::Dropout`].
#[derive(Clone, Debug)]
pub struct Dropout {
    drop_p: f32,
}

impl Dropout {
    /// A layer that drops elements with this probability. [`forward`](Self::forward) checks it.
    pub fn new(drop_p: f32) -> Dropout {
        Self { drop_p }
    }

    /// [`dropout`] if `train`, else `xs`.
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
