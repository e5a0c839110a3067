use candle_core::{Module, Result, Tensor, bail};

use super::FrozenWeight;

/// y = x · Wᵀ + b with a frozen weight, as the base of an adapter.
///
/// Unlike [`QMatMul`](super::QMatMul), it always multiplies by the dequantized weight, also where nothing is trained, so that an evaluation has
/// the results of training. Some rows of the weight, or on CUDA some columns for the gradient of x, are dequantized at a time, at most
/// 32 MiB there and 4 MiB on the CPU, or one row or 256 columns: on CUDA to the type of x, on the CPU to f32. Sums are f32. A bias may be trained.
///
/// It keeps neither its input nor its output.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_headroom_nn::Module;
/// use candle_headroom_nn::quantized::{FrozenLinear, GgmlDType, QTensor};
///
/// let weight = Tensor::randn(0f32, 1., (64, 256), &Device::Cpu)?; // [out, in]
/// let weight = QTensor::quantize(&weight, GgmlDType::Q4K)?;
/// let layer = FrozenLinear::new(weight, None)?;
/// let x = Var::randn(0f32, 1., (4, 256), &Device::Cpu)?; // [samples, in]
/// let y = layer.forward(&x)?;
/// assert_eq!(y.dims(), [4, 64]);
/// assert!(y.sum_all()?.backward()?.get(&x).is_some());
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct FrozenLinear {
    weight: FrozenWeight,
    bias: Option<Tensor>,
}

impl FrozenLinear {
    /// A layer with a weight (out, in) and a bias (out), of the type of inputs.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::Module;
    /// use candle_headroom_nn::quantized::{FrozenLinear, GgmlDType, QTensor};
    ///
    /// let weight = Tensor::ones((64, 32), DType::F32, &Device::Cpu)?; // [out, in]
    /// let weight = QTensor::quantize(&weight, GgmlDType::Q8_0)?;
    /// let bias = Tensor::ones(64, DType::F32, &Device::Cpu)?; // [out]
    /// let layer = FrozenLinear::new(weight, Some(bias))?;
    /// let y = layer.forward(&Tensor::ones((1, 32), DType::F32, &Device::Cpu)?)?;
    /// assert!((y.max_all()?.to_scalar::<f32>()? - 33.).abs() < 0.1);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the weight is not a matrix, or the bias has another shape or is on another device.
    pub fn new(weight: impl Into<FrozenWeight>, bias: Option<Tensor>) -> Result<Self> {
        let weight = weight.into();
        let (out, _) = weight.dims()?;
        let device = weight.device();
        if let Some(bias) = &bias
            && (bias.dims() != [out] || !bias.device().same_device(&device))
        {
            let (shape, place) = (bias.shape(), bias.device().location());
            let here = device.location();
            bail!("frozen_linear: a bias {shape:?} on {place:?} for {out} outputs on {here:?}");
        }
        Ok(Self { weight, bias })
    }

    /// The weight (out, in).
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::quantized::FrozenLinear;
    /// let weight = Tensor::ones((64, 32), DType::BF16, &Device::Cpu)?;
    /// let layer = FrozenLinear::new(weight, None)?;
    /// assert_eq!(layer.weight().dims()?, (64, 32));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn weight(&self) -> &FrozenWeight {
        &self.weight
    }

    /// The bias (out).
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::quantized::FrozenLinear;
    /// let weight = Tensor::ones((64, 32), DType::BF16, &Device::Cpu)?;
    /// let layer = FrozenLinear::new(weight, None)?;
    /// assert!(layer.bias().is_none());
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }
}

impl Module for FrozenLinear {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let product = |xs: &Tensor| self.weight.product(xs);
        let bias = self.bias.as_ref();
        self.weight.apply("frozen_linear", xs, bias, product)
    }
}
