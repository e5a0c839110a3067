//! The methods of tensors that `scripts/trainable-copy.sh` puts `with_gradients()` before, as far as candle-transformers calls them. Here
//! they are made of selections, sums and maxima.

use crate::{Conv1d, Conv1dConfig, ConvTranspose1d, ConvTranspose1dConfig, Module};
use candle_core::{Result, Tensor, ToUsize2, shape::Dim};

pub trait WithGradients {
    fn with_gradients(&self) -> Differentiable<'_>;
}

impl WithGradients for Tensor {
    fn with_gradients(&self) -> Differentiable<'_> {
        Differentiable(self)
    }
}

pub struct Differentiable<'a>(&'a Tensor);

impl Differentiable<'_> {
    pub fn max_pool2d_with_stride<T: ToUsize2>(self, kernel: T, stride: T) -> Result<Tensor> {
        let windows = self.windows(kernel.to_usize2(), stride.to_usize2())?;
        // `max` gives each of several equal elements the whole gradient.
        let largest = windows.detach().argmax_keepdim(0)?;
        windows.contiguous()?.gather(&largest, 0)?.squeeze(0)
    }

    pub fn avg_pool2d(self, kernel: impl ToUsize2) -> Result<Tensor> {
        let kernel = kernel.to_usize2();
        self.windows(kernel, kernel)?.mean(0)
    }

    /// The elements of all windows, one place in the window after the other.
    fn windows(&self, kernel: (usize, usize), stride: (usize, usize)) -> Result<Tensor> {
        let (_, _, height, width) = self.0.dims4()?;
        let count = |size, kernel, stride| (size - kernel) / stride + 1;
        let (high, wide) = (
            count(height, kernel.0, stride.0),
            count(width, kernel.1, stride.1),
        );
        let x = self.0.contiguous()?;
        let places = (0..kernel.0).flat_map(|down| (0..kernel.1).map(move |right| (down, right)));
        let places = places.map(|(down, right)| {
            let rows = (0..high).map(|at| at * stride.0 + down);
            let columns = (0..wide).map(|at| at * stride.1 + right);
            select(&select(&x, rows, 2)?, columns, 3)
        });
        Tensor::stack(&places.collect::<Result<Vec<_>>>()?, 0)
    }

    pub fn upsample_nearest2d(self, high: usize, wide: usize) -> Result<Tensor> {
        let (_, _, height, width) = self.0.dims4()?;
        let nearest = |from: usize, to: usize| (0..to).map(move |at| at * from / to);
        let rows = select(&self.0.contiguous()?, nearest(height, high), 2)?;
        select(&rows, nearest(width, wide), 3)
    }

    pub fn interpolate2d(self, high: usize, wide: usize) -> Result<Tensor> {
        self.upsample_nearest2d(high, wide)
    }

    pub fn conv1d(
        self,
        kernel: &Tensor,
        padding: usize,
        stride: usize,
        dilation: usize,
        groups: usize,
    ) -> Result<Tensor> {
        let config = Conv1dConfig {
            padding,
            stride,
            dilation,
            groups,
            ..Default::default()
        };
        Conv1d::new(kernel.clone(), None, config).forward(self.0)
    }

    pub fn conv_transpose1d(
        self,
        kernel: &Tensor,
        padding: usize,
        output_padding: usize,
        stride: usize,
        dilation: usize,
        groups: usize,
    ) -> Result<Tensor> {
        let config = ConvTranspose1dConfig {
            padding,
            output_padding,
            stride,
            dilation,
            groups,
        };
        ConvTranspose1d::new(kernel.clone(), None, config).forward(self.0)
    }

    /// candle's: no model here needs its gradient.
    pub fn scatter_add(self, indexes: &Tensor, source: &Tensor, dim: impl Dim) -> Result<Tensor> {
        self.0.scatter_add(indexes, source, dim)
    }
}

fn select(x: &Tensor, places: impl Iterator<Item = usize>, dim: usize) -> Result<Tensor> {
    let places = Tensor::from_iter(places.map(|place| place as u32), x.device())?;
    x.index_select(&places, dim)
}
