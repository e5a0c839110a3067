//! A kernel that slides over a sequence: convolution, its transpose, and the gradient of the kernel.

use candle_core::conv::CudnnFwdAlgo;
use candle_core::{Result, Tensor, bail};

use super::bias::widened;

/// How a kernel slides over a long sequence and meets the positions of a short one. A convolution goes from the long one to the short
/// one; its input's gradient, like the transposed convolution, the other way.
#[derive(Clone, Copy)]
pub struct Sliding {
    pub padding: usize,
    pub stride: usize,
    pub dilation: usize,
    pub groups: usize,
}

impl Sliding {
    /// The convolution of a long sequence.
    pub fn narrow(
        self,
        long: &Tensor,
        weight: &Tensor,
        algorithm: Option<CudnnFwdAlgo>,
    ) -> Result<Tensor> {
        self.check(weight)?;
        let reach = self.reach(1, weight.dim(2)?);
        if long.dims3()?.2 + 2 * self.padding < reach {
            bail!(
                "conv1d: a kernel that reaches over {reach} positions does not fit into {:?} with a padding of {}",
                long.shape(),
                self.padding
            )
        }
        let (long, weight) = (long.contiguous()?, weight.contiguous()?);
        long.conv1d_with_algo(
            &weight,
            self.padding,
            self.stride,
            self.dilation,
            self.groups,
            algorithm,
        )
    }

    /// What candle divides by, or assumes.
    fn check(self, weight: &Tensor) -> Result<()> {
        let (outer, inner, kernel) = weight.dims3()?;
        if self.stride == 0
            || self.groups == 0
            || outer * inner * kernel == 0
            || outer % self.groups != 0
        {
            bail!(
                "conv1d: stride {}, groups {} and weight {:?} must not be zero, and the groups must divide the channels",
                self.stride,
                self.groups,
                weight.shape()
            )
        }
        Ok(())
    }

    /// Its transpose: a long sequence of this length.
    pub fn widen(self, short: &Tensor, weight: &Tensor, length: usize) -> Result<Tensor> {
        self.check(weight)?;
        let (short, weight) = (short.contiguous()?, weight.contiguous()?);
        if short.dims3()?.2 == 0 {
            bail!("conv-transpose1d: no positions in {:?}", short.shape())
        }
        // candle subtracts the padding from the strides before it adds the kernel. Where they are less, it is cut off here.
        let strides = (short.dim(2)? - 1) * self.stride;
        let padding = if strides < 2 * self.padding {
            0
        } else {
            self.padding
        };
        let first = self.padding - padding;
        let reached = self.reach(short.dim(2)?, weight.dim(2)?) - 2 * padding;
        let more = (first + length).saturating_sub(reached);
        let widen = |short: &Tensor| {
            short.conv_transpose1d(
                &weight,
                padding,
                more,
                self.stride,
                self.dilation,
                self.groups,
            )
        };
        // One sample after the other on the CPU: candle's matrix product takes the rows of all batches for adjacent.
        let long = match short.dim(0)? {
            batch if batch > 1 && short.device().is_cpu() => {
                let samples = (0..batch).map(|at| widen(&short.narrow(0, at, 1)?));
                Tensor::cat(&samples.collect::<Result<Vec<_>>>()?, 0)?
            }
            _ => widen(&short)?,
        };
        long.narrow(2, first, length)
    }

    /// Number of positions that the kernel meets, with the padding.
    fn reach(self, short: usize, kernel: usize) -> usize {
        short.saturating_sub(1) * self.stride + self.dilation * kernel.saturating_sub(1) + 1
    }

    /// Number of positions that a short sequence of this length comes from at least.
    pub fn widest(self, short: usize, kernel: usize) -> Result<usize> {
        let reach = self.reach(short, kernel);
        match reach.checked_sub(2 * self.padding) {
            Some(length) => Ok(length),
            None => bail!(
                "conv-transpose1d: a padding of {} leaves nothing of {reach} positions",
                self.padding
            ),
        }
    }

    /// The gradient of the weight (short channels, long channels / groups, kernel): for each position in the kernel the product of the
    /// two sequences, f16 and bf16 in f32.
    pub fn products(self, long: &Tensor, short: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let wide = widened(weight.dtype());
        let (outer, inner, kernel) = weight.dims3()?;
        let (batch, channels, length) = short.dims3()?;
        let grouped = |tensor: &Tensor, channels: usize| {
            tensor.reshape((batch, self.groups, channels / self.groups, length))
        };
        let short = grouped(&short.to_dtype(wide)?, channels)?.permute((1, 2, 0, 3))?;
        let short = short.reshape((self.groups, outer / self.groups, batch * length))?;
        let long = long.to_dtype(wide)?;
        // Also the positions that the last stride reaches over.
        let missing = self
            .reach(length, kernel)
            .saturating_sub(long.dim(2)? + self.padding);
        let long = long
            .pad_with_zeros(2, self.padding, missing)?
            .contiguous()?;
        let products = (0..kernel).map(|at| {
            let met = (0..length).map(|to| (at * self.dilation + to * self.stride) as u32);
            let met = Tensor::from_iter(met, long.device())?;
            let long =
                grouped(&long.index_select(&met, 2)?, long.dim(1)?)?.permute((1, 0, 3, 2))?;
            let long = long.reshape((self.groups, batch * length, inner))?;
            short.matmul(&long)?.reshape((outer, inner))
        });
        Tensor::stack(&products.collect::<Result<Vec<_>>>()?, 2)?.to_dtype(weight.dtype())
    }
}
