//! Layer normalization and RMS normalization, as [`mod@candle_nn::layer_norm`], with a backward pass.
//!
//! Each row of the last dimension is normalized by itself, so a row's value and gradient do not depend on the other rows. All
//! arithmetic is in f32, f64 for f64, and rounded once at the end; so are the gradients of weight and bias, which are sums over all
//! rows. The variance is summed around the mean. The graph keeps the output; the backward pass computes the statistics again.
//!
//! The same as functions: [`ops::layer_norm`](crate::ops::layer_norm()) and [`ops::rms_norm`](crate::ops::rms_norm()).

use candle_core::{D, Module, Result, Tensor, bail};
use candle_nn::VarBuilder;
pub use candle_nn::layer_norm::LayerNormConfig;

use super::graph::{Backward, Gradients, Mail, mail, operation, record};
use super::kernel::{
    self, Extent, Kernel, Number, Plan, rows_of_part, same_type, sum_of, sum_of_products,
};
use super::ops::elementwise::add;

/// Layer normalization over the last dimension, as [`candle_nn::LayerNorm`], with a backward pass.
///
/// All arithmetic is in f32, f64 for f64, and the variance is summed around the mean: see
/// [`ops::layer_norm`](super::ops::layer_norm()).
///
/// It keeps its output. A weight or bias of another shape than the last dimension is broadcast, which keeps several times the output.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::{Module, VarBuilder, VarMap, layer_norm};
///
/// # fn main() -> candle_core::Result<()> {
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let norm = layer_norm(64, 1e-5, vb)?; // weights `weight` and `bias`
/// let x = Tensor::randn(5f32, 2., (2, 10, 64), &Device::Cpu)?; // [batch, tokens, width]
/// let y = norm.forward(&x)?;
/// assert!(y.mean_all()?.to_scalar::<f32>()?.abs() < 1e-4);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LayerNorm(candle_nn::LayerNorm);

impl LayerNorm {
    /// Subtracts the mean, divides by √(variance + `eps`), multiplies by `weight` and adds `bias`. Both have the type of the input
    /// and as many elements as its last dimension; other shapes are broadcast.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::{LayerNorm, Module};
    ///
    /// let weight = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// let bias = Tensor::new(&[0f32, 10.], &Device::Cpu)?;
    /// let x = Tensor::new(&[[1f32, 3.]], &Device::Cpu)?; // mean 2, variance 1
    /// let y = LayerNorm::new(weight, bias, 0.).forward(&x)?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[-1., 12.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Self {
        Self(candle_nn::LayerNorm::new(weight, bias, eps))
    }

    /// [`new`](Self::new) without a bias.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::{LayerNorm, Module};
    ///
    /// let weight = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// let x = Tensor::new(&[[1f32, 3.]], &Device::Cpu)?; // mean 2, variance 1
    /// let y = LayerNorm::new_no_bias(weight, 0.).forward(&x)?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[-1., 2.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn new_no_bias(weight: Tensor, eps: f64) -> Self {
        Self(candle_nn::LayerNorm::new_no_bias(weight, eps))
    }

    /// Divides by √(mean of squares + `eps`) and multiplies by `weight`.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::{LayerNorm, Module};
    ///
    /// let weight = Tensor::new(&[1f32, 3.], &Device::Cpu)?;
    /// let x = Tensor::new(&[[2f32, 2.]], &Device::Cpu)?; // mean of squares 4
    /// let y = LayerNorm::rms_norm(weight, 0.).forward(&x)?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[1., 3.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn rms_norm(weight: Tensor, eps: f64) -> Self {
        Self(candle_nn::LayerNorm::rms_norm(weight, eps))
    }

    /// The weight.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::LayerNorm;
    /// # let weight = Tensor::ones(64, DType::F32, &Device::Cpu)?;
    /// let norm = LayerNorm::new_no_bias(weight, 1e-5);
    /// assert_eq!(norm.weight().dims(), [64]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// The bias, if there is one.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::LayerNorm;
    /// # let weight = Tensor::ones(64, DType::F32, &Device::Cpu)?;
    /// # let bias = weight.zeros_like()?;
    /// let norm = LayerNorm::new(weight, bias, 1e-5);
    /// assert_eq!(norm.bias().expect("a bias").dims(), [64]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn bias(&self) -> Option<&Tensor> {
        self.0.bias()
    }

    /// The number added to the variance.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::LayerNorm;
    /// # let weight = Tensor::ones(64, DType::F32, &Device::Cpu)?;
    /// let norm = LayerNorm::new_no_bias(weight, 1e-5);
    /// assert_eq!(norm.eps(), 1e-5);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    /// Whether the mean is subtracted.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::LayerNorm;
    /// # let weight = Tensor::ones(64, DType::F32, &Device::Cpu)?;
    /// assert!(LayerNorm::new_no_bias(weight.clone(), 1e-5).remove_mean());
    /// assert!(!LayerNorm::rms_norm(weight, 1e-5).remove_mean());
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn remove_mean(&self) -> bool {
        self.0.remove_mean()
    }

    /// x + `residual`, both of one shape and type, and the norm of this sum. On CUDA these are one kernel, and so are their gradients.
    ///
    /// It keeps both outputs.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::LayerNorm;
    ///
    /// let norm = LayerNorm::new_no_bias(Tensor::ones(2, DType::F32, &Device::Cpu)?, 0.);
    /// let x = Tensor::new(&[[1f32, 5.]], &Device::Cpu)?; // what a block computes
    /// let residual = Tensor::new(&[[1f32, 1.]], &Device::Cpu)?; // and what it received
    /// let (sum, y) = norm.forward_residual(&x, &residual)?;
    /// assert_eq!(sum.to_vec2::<f32>()?, [[2., 6.]]);
    /// assert_eq!(y.to_vec2::<f32>()?, [[-1., 1.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If shapes, types or devices differ, or the weight does not match.
    pub fn forward_residual(&self, xs: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        let (weight, bias) = (self.weight(), self.bias());
        let width = xs.dim(D::Minus1)?;
        let mut parameters = [Some(weight), bias].into_iter().flatten();
        let is_one = parameters.all(|parameter| parameter.dims() == [width])
            && xs.shape() == residual.shape()
            && kernel::runs_on(xs.device())
            && xs.elem_count() > 0;
        if !is_one {
            let sum = add(xs, residual)?;
            let ys = self.forward(&sum)?;
            return Ok((sum, ys));
        }
        let (eps, center) = (self.eps(), self.remove_mean());
        normalize_sum(Rows { width, eps, center }, [xs, residual], weight, bias)
    }
}

impl From<candle_nn::LayerNorm> for LayerNorm {
    fn from(layer: candle_nn::LayerNorm) -> Self {
        Self(layer)
    }
}

impl Module for LayerNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (weight, bias) = (self.weight(), self.bias());
        let width = xs.dim(D::Minus1)?;
        let is_row = |parameter: &Tensor| parameter.dims() == [width];
        if is_row(weight) && bias.is_none_or(is_row) {
            return normalize(self.eps(), self.remove_mean(), xs, weight, bias);
        }
        let ones = Tensor::ones(width, xs.dtype(), xs.device())?;
        let normal = normalize(self.eps(), self.remove_mean(), xs, &ones, None)?;
        let scaled = normal.broadcast_mul(weight)?;
        bias.iter()
            .try_fold(scaled, |scaled, bias| scaled.broadcast_add(bias))
    }
}

/// Creates a [`LayerNorm`] from the tensors `weight` (or `gamma`) and, if `config.affine`, `bias` (or `beta`).
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom_nn::{LayerNormConfig, VarBuilder, VarMap, layer_norm};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let norm = layer_norm(64, 1e-5, vb.pp("norm"))?; // `norm.weight` and `norm.bias`
/// assert_eq!(norm.bias().expect("a bias").dims(), [64]);
/// let config = LayerNormConfig { affine: false, ..Default::default() };
/// assert!(layer_norm(64, config, vb.pp("other"))?.bias().is_none());
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// If `vb` has no such tensors of `size` elements.
pub fn layer_norm<C: Into<LayerNormConfig>>(
    size: usize,
    config: C,
    vb: VarBuilder,
) -> Result<LayerNorm> {
    Ok(LayerNorm(candle_nn::layer_norm(size, config, vb)?))
}

/// Creates a [`LayerNorm`] without bias from the tensor `weight` (or `gamma`).
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom_nn::{VarBuilder, VarMap, layer_norm_no_bias};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let norm = layer_norm_no_bias(4, 1e-5, vb)?;
/// assert_eq!(norm.weight().to_vec1::<f32>()?, [1.; 4]); // a new weight begins with ones
/// assert!(norm.bias().is_none());
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// If `vb` has no such tensor of `size` elements.
pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder) -> Result<LayerNorm> {
    Ok(LayerNorm(candle_nn::layer_norm_no_bias(size, eps, vb)?))
}

/// RMS normalization over the last dimension, as [`candle_nn::RmsNorm`], with a backward pass.
///
/// It keeps its output.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::{Module, RmsNorm};
///
/// # fn main() -> candle_core::Result<()> {
/// let weight = Tensor::ones(64, DType::F32, &Device::Cpu)?;
/// let norm = RmsNorm::new(weight, 1e-6);
/// let x = Tensor::randn(0f32, 3., (2, 10, 64), &Device::Cpu)?; // [batch, tokens, width]
/// assert_eq!(norm.forward(&x)?.dims(), [2, 10, 64]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RmsNorm(LayerNorm);

impl RmsNorm {
    /// Divides by √(mean of squares + `eps`) and multiplies by `weight`.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::{Module, RmsNorm};
    ///
    /// let weight = Tensor::new(&[1f32, 3.], &Device::Cpu)?;
    /// let x = Tensor::new(&[[2f32, 2.]], &Device::Cpu)?; // mean of squares 4
    /// let y = RmsNorm::new(weight, 0.).forward(&x)?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[1., 3.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn new(weight: Tensor, eps: f64) -> Self {
        Self(LayerNorm::rms_norm(weight, eps))
    }

    /// The same as a [`LayerNorm`] that does not subtract the mean.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::{LayerNorm, RmsNorm};
    ///
    /// let weight = Tensor::ones(64, DType::F32, &Device::Cpu)?;
    /// let inner: LayerNorm = RmsNorm::new(weight, 1e-6).into_inner();
    /// assert!(!inner.remove_mean());
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn into_inner(self) -> LayerNorm {
        self.0
    }

    /// The weight.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::RmsNorm;
    /// # let weight = Tensor::ones(64, DType::F32, &Device::Cpu)?;
    /// let norm = RmsNorm::new(weight, 1e-6);
    /// assert_eq!(norm.weight().dims(), [64]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// The number added to the mean of squares.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::RmsNorm;
    /// # let weight = Tensor::ones(64, DType::F32, &Device::Cpu)?;
    /// let norm = RmsNorm::new(weight, 1e-6);
    /// assert_eq!(norm.eps(), 1e-6);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    /// The same as `forward`, which has a backward pass too.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::RmsNorm;
    ///
    /// let norm = RmsNorm::new(Tensor::ones(2, DType::F32, &Device::Cpu)?, 0.);
    /// let x = Tensor::new(&[[2f32, -2.]], &Device::Cpu)?;
    /// assert_eq!(norm.forward_diff(&x)?.to_vec2::<f32>()?, [[1., -1.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the weight does not match `xs` in shape or type.
    pub fn forward_diff(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }

    /// x + `residual` and the norm of this sum, as [`LayerNorm::forward_residual`].
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::RmsNorm;
    ///
    /// let norm = RmsNorm::new(Tensor::ones(2, DType::F32, &Device::Cpu)?, 0.);
    /// let x = Tensor::new(&[[1f32, -3.]], &Device::Cpu)?; // what a block computes
    /// let residual = Tensor::new(&[[1f32, 1.]], &Device::Cpu)?; // and what it received
    /// let (sum, y) = norm.forward_residual(&x, &residual)?;
    /// assert_eq!(sum.to_vec2::<f32>()?, [[2., -2.]]);
    /// assert_eq!(y.to_vec2::<f32>()?, [[1., -1.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If shapes, types or devices differ, or the weight does not match.
    pub fn forward_residual(&self, xs: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        self.0.forward_residual(xs, residual)
    }
}

impl From<candle_nn::RmsNorm> for RmsNorm {
    fn from(layer: candle_nn::RmsNorm) -> Self {
        Self(layer.into_inner().into())
    }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

/// Creates a [`RmsNorm`] from the tensor `weight` (or `gamma`).
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom_nn::{VarBuilder, VarMap, rms_norm};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let norm = rms_norm(4, 1e-6, vb.pp("norm"))?; // `norm.weight`
/// assert_eq!(norm.weight().to_vec1::<f32>()?, [1.; 4]); // a new weight begins with ones
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// If `vb` has no such tensor of `size` elements.
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<RmsNorm> {
    Ok(candle_nn::rms_norm(size, eps, vb)?.into())
}

/// Normalizes the rows of `xs`, its last dimension. All arithmetic is in f32, f64 for f64, and the variance is summed around the mean.
///
/// # Errors
/// If a parameter has not as many elements as a row, or another type.
pub(crate) fn normalize(
    eps: f64,
    center: bool,
    xs: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let name = match center {
        true => "layer-norm",
        false => "rms-norm",
    };
    let width = xs.dim(D::Minus1)?;
    let rows = Rows { width, eps, center };
    for parameter in [Some(weight), bias].into_iter().flatten() {
        if parameter.dims() != [width] {
            bail!(
                "{name}: {:?} needs parameters of ({width}), got {:?}",
                xs.shape(),
                parameter.shape()
            )
        }
        same_type(name, xs.dtype(), parameter.dtype())?;
    }
    if !kernel::runs_on(xs.device()) {
        let (zeros, eps) = (weight.zeros_like()?, eps as f32);
        let bias = bias.unwrap_or(&zeros);
        return match center {
            true => candle_nn::ops::layer_norm_slow(xs, weight, bias, eps),
            false => candle_nn::ops::rms_norm_slow(xs, weight, eps)?.broadcast_add(bias),
        };
    }
    let ys = match xs.elem_count() {
        0 => xs.zeros_like()?,
        _ => {
            let [ys] = kernel::run(&rows, [xs, weight, &shift(weight, bias)?])?;
            ys
        }
    };
    let none = weight.detach();
    let inputs = [xs, weight, bias.unwrap_or(&none)];
    record(name, inputs, ys, move |given| backward(rows, given))
}

/// What is added to the product with the weight.
fn shift(weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    bias.map_or_else(|| weight.zeros_like(), |bias| Ok(bias.detach()))
}

/// The gradients of the input and of its parameters.
fn backward(rows: Rows, given: Backward<3>) -> Result<Gradients<3>> {
    let [xs, weight, _] = &given.inputs;
    let with_sums = given.needs[1] || given.needs[2];
    let gradients = RowsBackward { rows, with_sums };
    let gradients = kernel::run(&gradients, [xs, weight, &given.gradient])?;
    let mut gradients = gradients.into_iter();
    Ok(given
        .needs
        .map(|needed| gradients.next().filter(|_| needed)))
}

/// The sum of two tensors, and its rows normalized, as outputs of one operation. There are rows, and parameters of their width.
fn normalize_sum(
    rows: Rows,
    [xs, residual]: [&Tensor; 2],
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let [sum, ys] = kernel::run(&rows, [xs, residual, weight, &shift(weight, bias)?])?;
    let (none, weight_alone) = (weight.detach(), weight.detach());
    let sources = [xs, residual, weight, bias.unwrap_or(&none)];
    let needs = sources.map(Tensor::track_op);
    let tracked: Vec<_> = sources.into_iter().filter(|it| it.track_op()).collect();
    if tracked.is_empty() {
        return Ok((sum, ys));
    }
    let backward = move |arrived: Mail, outputs: &[Tensor]| {
        let mut arrived = arrived.into_iter().map(|gradient| Some(gradient?.tensor));
        let (of_sum, of_norm) = (arrived.next().flatten(), arrived.next().flatten());
        let with_sums = needs[2] || needs[3];
        let kernel = RowsBackward { rows, with_sums };
        let [dx, dw, db] = match (outputs, &of_norm, &of_sum) {
            ([sum, _], Some(dy), None) => kernel::run(&kernel, [sum, &weight_alone, dy])?.map(Some),
            ([sum, _], Some(dy), Some(more)) => {
                kernel::run(&kernel, [sum, &weight_alone, dy, more])?.map(Some)
            }
            _ => [of_sum, None, None],
        };
        let gradients = [dx.clone(), dx, dw, db];
        Ok(mail(gradients, needs, Vec::new()))
    };
    let name = "add-norm";
    let outputs = operation(name, &tracked, vec![sum, ys], true, Box::new(backward))?;
    <[Tensor; 2]>::try_from(outputs)
        .map(Into::into)
        .map_err(|_| kernel::mismatch(name))
}

/// Normalization of rows of `width` elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    pub width: usize,
    pub eps: f64,
    /// Subtracts the mean first, as layer norm does and RMS norm does not.
    pub center: bool,
}

impl Rows {
    /// Writes a row, divided by its standard deviation or root mean square, and returns the divisor's reciprocal.
    ///
    /// The mean is that of the differences from the first element: the mean of the elements themselves, if it is large, would be
    /// rounded by more than they differ.
    pub fn divide<S: Number>(self, row: &[S], out: &mut [S]) -> S {
        let len = S::of(self.width as f64);
        let first = match row.first() {
            Some(first) if self.center => *first,
            _ => S::zero(),
        };
        for (out, x) in out.iter_mut().zip(row) {
            *out = *x - first;
        }
        if self.center {
            let mean = sum_of(out, out, |x, _| x) / len;
            for out in out.iter_mut() {
                *out -= mean;
            }
        }
        let squares = sum_of_products(out, out);
        let scale = (squares / len + S::of(self.eps)).sqrt().recip();
        for out in out.iter_mut() {
            *out *= scale;
        }
        scale
    }
}

/// y = w · (x − mean) / deviation + b for each row, from x, w and b.
impl Kernel<3, 1> for Rows {
    const NAME: &'static str = "rows_forward";

    fn plan(&self, [xs, _, _]: [&Tensor; 3]) -> Plan {
        let width = self.width;
        Plan::of_rows(xs, width, [Extent::Row(width), Extent::All, Extent::All])
    }

    fn cpu<S: Number>(&self, _: usize, [xs, weight, bias]: [&[S]; 3], [ys]: [&mut [S]; 1]) {
        let width = self.width;
        for (y, x) in ys.chunks_mut(width).zip(xs.chunks(width)) {
            self.divide(x, y);
            for ((y, w), b) in y.iter_mut().zip(weight).zip(bias) {
                *y = *y * *w + *b;
            }
        }
    }
}

/// x + residual, and y of this sum, from x, the residual, w and b.
impl Kernel<4, 2> for Rows {
    const NAME: &'static str = "rows_forward_sum";

    fn plan(&self, [xs, ..]: [&Tensor; 4]) -> Plan {
        let (all, row) = (Extent::All, Extent::Row(self.width));
        let plan = Plan::of_rows(xs, self.width, [row, row, all, all]);
        let outputs = [&plan.outputs[..]; 2].concat();
        Plan { outputs, ..plan }
    }

    fn cpu<S: Number>(&self, first: usize, inputs: [&[S]; 4], [sums, ys]: [&mut [S]; 2]) {
        let [xs, residual, weight, bias] = inputs;
        for ((sum, x), more) in sums.iter_mut().zip(xs).zip(residual) {
            *sum = *x + *more;
        }
        self.cpu(first, [sums, weight, bias], [ys]);
    }
}

/// The gradients of x, w and b from x, w and dy, and perhaps another gradient of x, which is added. With n the normalized row and g = w · dy:
/// dx = (g − mean(g) − n · mean(g · n)) / deviation, dw = Σ n · dy and db = Σ dy over rows.
pub(crate) struct RowsBackward {
    pub rows: Rows,
    /// Whether to compute dw and db, which are empty otherwise.
    pub with_sums: bool,
}

impl RowsBackward {
    /// Number of elements of dw and of db.
    fn sums(&self) -> usize {
        match self.with_sums {
            true => self.rows.width,
            false => 0,
        }
    }
}

impl<const IN: usize> Kernel<IN, 3> for RowsBackward {
    const NAME: &'static str = match IN {
        3 => "rows_backward",
        _ => "rows_backward_sum",
    };

    fn plan(&self, inputs: [&Tensor; IN]) -> Plan {
        let (width, sums) = (self.rows.width, self.sums());
        let mut extents = [Extent::Row(width); IN];
        extents[1] = Extent::All;
        let mut plan = Plan::of_rows(inputs[0], width, extents);
        plan.at_once = rows_of_part(plan.rows, width);
        plan.outputs
            .extend([(); 2].map(|()| (sums.into(), Extent::Block(sums))));
        plan
    }

    fn cpu<S: Number>(&self, _: usize, inputs: [&[S]; IN], outputs: [&mut [S]; 3]) {
        let ([xs, weight, dys, more @ ..], [dxs, dw, db]) = (&inputs[..], outputs) else {
            return;
        };
        let width = self.rows.width;
        let len = S::of(width as f64);
        let (mut normal, mut weighted) = (vec![S::zero(); width], vec![S::zero(); width]);
        let rows = xs.chunks(width).zip(dys.chunks(width));
        for (dx, (x, dy)) in dxs.chunks_mut(width).zip(rows) {
            let scale = self.rows.divide(x, &mut normal);
            for ((g, dy), w) in weighted.iter_mut().zip(dy).zip(*weight) {
                *g = *dy * *w;
            }
            // Without sums these are empty, and so is the loop.
            for (((dw, db), n), dy) in dw.iter_mut().zip(db.iter_mut()).zip(&normal).zip(dy) {
                *dw += *n * *dy;
                *db += *dy;
            }
            let along = sum_of_products(&weighted, &normal) / len;
            let mean = match self.rows.center {
                true => sum_of(&weighted, &weighted, |g, _| g) / len,
                false => S::zero(),
            };
            for ((dx, g), n) in dx.iter_mut().zip(&weighted).zip(&normal) {
                *dx = scale * (*g - mean - *n * along);
            }
        }
        for (dx, more) in dxs.iter_mut().zip(more.iter().copied().flatten()) {
            *dx += *more;
        }
    }
}
