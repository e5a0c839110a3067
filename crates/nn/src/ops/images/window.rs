use candle_core::{Result, Tensor, bail};

/// The windows of a pooling along one dimension.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Number of elements, without the padding.
    pub size: usize,
    pub kernel: usize,
    pub stride: usize,
    /// Elements before the first one, and after the last one.
    pub padding: usize,
}

impl Window {
    /// Those of height and width.
    pub fn both(
        name: &str,
        x: &Tensor,
        kernel: (usize, usize),
        stride: (usize, usize),
        padding: (usize, usize),
    ) -> Result<[Self; 2]> {
        let (_, _, height, width) = x.dims4()?;
        let windows = [
            (height, kernel.0, stride.0, padding.0),
            (width, kernel.1, stride.1, padding.1),
        ];
        for (size, kernel, stride, padding) in windows {
            if kernel * stride == 0 || padding > kernel / 2 || kernel > size + 2 * padding {
                bail!(
                    "{name}: a window of {kernel} every {stride} with a padding of {padding} does not fit into {size}: window and \
                     stride must not be zero, the padding at most half of the window, and the window at most the padded size"
                )
            }
        }
        Ok(windows.map(|(size, kernel, stride, padding)| Self {
            size,
            kernel,
            stride,
            padding,
        }))
    }

    /// Number of windows.
    pub fn count(self) -> usize {
        (self.padded() - self.kernel) / self.stride + 1
    }

    pub fn padded(self) -> usize {
        self.size + 2 * self.padding
    }

    /// Pads dimension `dim` with a value.
    pub fn pad(self, x: &Tensor, dim: usize, value: f64) -> Result<Tensor> {
        if self.padding == 0 {
            return Ok(x.clone());
        }
        let mut dims = x.dims().to_vec();
        dims[dim] = self.padding;
        let side = Tensor::full(value, dims, x.device())?.to_dtype(x.dtype())?;
        Tensor::cat(&[&side, x, &side], dim)
    }
}
