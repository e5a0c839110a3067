//! What a loss of tokens is given: options, and targets and weights, checked where they can be read without waiting for a device, and scaled so
//! that f16 holds the gradients of logits.

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::bounds::at_least;
use crate::loss::targets::{Targets, Total};

pub(super) const NAME: &str = "linear_cross_entropy";

/// Options of [`linear_cross_entropy`](super::linear_cross_entropy()): which tokens count, and what is added to the loss.
///
/// The default is the plain cross-entropy of every token. Values out of range are errors of the functions that take the options.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::loss::{LinearCrossEntropy, linear_cross_entropy};
///
/// let hidden = Tensor::zeros((2, 8), DType::F32, &Device::Cpu)?; // [tokens, width]
/// let weight = Tensor::zeros((4, 8), DType::F32, &Device::Cpu)?; // [classes, width]: all logits are 0
/// let targets = Tensor::new(&[1u32, u32::MAX], &Device::Cpu)?; // the second one does not count
/// let options = LinearCrossEntropy::default().label_smoothing(0.1);
/// let loss = linear_cross_entropy(&hidden, &weight, &targets, &options)?.to_scalar::<f32>()?;
/// assert!((loss - 4f32.ln()).abs() < 1e-6);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct LinearCrossEntropy {
    pub(super) bias: Option<Tensor>,
    pub(super) ignore_index: Option<i64>,
    pub(super) token_weights: Option<Tensor>,
    pub(super) label_smoothing: f64,
    pub(super) z_loss: f64,
    pub(super) softcap: Option<f64>,
    pub(super) chunk_rows: Option<usize>,
}

impl LinearCrossEntropy {
    /// Adds `bias` (classes) to the logits, in the type of the weight. If it leads to a Var, it gets its gradient.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::loss::{LinearCrossEntropy, linear_cross_entropy};
    ///
    /// let hidden = Tensor::zeros((2, 8), DType::F32, &Device::Cpu)?; // [tokens, width]
    /// let weight = Tensor::zeros((4, 8), DType::F32, &Device::Cpu)?; // [classes, width]: all logits are 0
    /// let targets = Tensor::new(&[1u32, 2], &Device::Cpu)?;
    /// let bias = Tensor::new(&[20f32, 0., 0., 0.], &Device::Cpu)?;
    /// let options = LinearCrossEntropy::default().bias(&bias);
    /// let loss = linear_cross_entropy(&hidden, &weight, &targets, &options)?.to_scalar::<f32>()?;
    /// assert!((loss - 20.).abs() < 1e-4); // both targets are 20 below class 0
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn bias(mut self, bias: &Tensor) -> Self {
        self.bias = Some(bias.clone());
        self
    }

    /// Tokens with this target add nothing to the loss, its mean or any gradient, even if their hidden states are NaN. PyTorch's
    /// default is −100. An index that the type of the targets cannot hold matches none.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::loss::{LinearCrossEntropy, linear_cross_entropy};
    ///
    /// let hidden = Tensor::zeros((2, 8), DType::F32, &Device::Cpu)?; // [tokens, width]
    /// let weight = Tensor::zeros((4, 8), DType::F32, &Device::Cpu)?; // [classes, width]: all logits are 0
    /// let targets = Tensor::new(&[1i64, -100], &Device::Cpu)?;
    /// let options = LinearCrossEntropy::default().ignore_index(-100);
    /// let loss = linear_cross_entropy(&hidden, &weight, &targets, &options)?.to_scalar::<f32>()?;
    /// assert!((loss - 4f32.ln()).abs() < 1e-6); // of the first token
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn ignore_index(mut self, index: i64) -> Self {
        self.ignore_index = Some(index);
        self
    }

    /// Multiplies the loss of each token by a weight, at least 0, in the shape of the targets. The mean is then Σ weight · loss /
    /// Σ weight. Weights get no gradient. A token of weight 0 is ignored.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::loss::{LinearCrossEntropy, linear_cross_entropy_sum};
    ///
    /// let hidden = Tensor::zeros((1, 3, 8), DType::F32, &Device::Cpu)?; // [samples, tokens, width]
    /// let weight = Tensor::zeros((10, 8), DType::F32, &Device::Cpu)?; // [classes, width]
    /// let targets = Tensor::new(&[[2u32, 5, 7]], &Device::Cpu)?;
    /// // The answer counts twice as much as the question, and padding not at all.
    /// let weights = Tensor::new(&[[1f32, 2., 0.]], &Device::Cpu)?;
    /// let options = LinearCrossEntropy::default().token_weights(&weights);
    /// let sum = linear_cross_entropy_sum(&hidden, &weight, &targets, &options)?;
    /// assert_eq!(sum.weight, 3.);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn token_weights(mut self, weights: &Tensor) -> Self {
        self.token_weights = Some(weights.detach());
        self
    }

    /// Gives the target 1 − `smoothing` of the probability, and all classes together the rest in equal shares, as PyTorch
    /// (Szegedy et al. 2015, arXiv 1512.00567). In [0, 1).
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::loss::{LinearCrossEntropy, linear_cross_entropy};
    ///
    /// let hidden = Tensor::zeros((2, 8), DType::F32, &Device::Cpu)?; // [tokens, width]
    /// let weight = Tensor::zeros((4, 8), DType::F32, &Device::Cpu)?; // [classes, width]: all logits are 0
    /// let targets = Tensor::new(&[0u32, 0], &Device::Cpu)?;
    /// let bias = Tensor::new(&[20f32, 0., 0., 0.], &Device::Cpu)?; // sure of class 0
    /// let options = LinearCrossEntropy::default().bias(&bias).label_smoothing(0.1);
    /// let loss = linear_cross_entropy(&hidden, &weight, &targets, &options)?.to_scalar::<f32>()?;
    /// assert!((loss - 1.5).abs() < 1e-4); // 0.1 / 4 · (0 + 20 + 20 + 20)
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn label_smoothing(mut self, smoothing: f64) -> Self {
        self.label_smoothing = smoothing;
        self
    }

    /// Adds `factor` · (log Σ e^logit)² to the loss of each token, which keeps logits small (PaLM, Chowdhery et al. 2022,
    /// arXiv 2204.02311, with 1e-4). Finite and at least 0.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::loss::{LinearCrossEntropy, linear_cross_entropy};
    ///
    /// let hidden = Tensor::zeros((2, 8), DType::F32, &Device::Cpu)?; // [tokens, width]
    /// let weight = Tensor::zeros((4, 8), DType::F32, &Device::Cpu)?; // [classes, width]: all logits are 0
    /// let targets = Tensor::new(&[1u32, 2], &Device::Cpu)?;
    /// let options = LinearCrossEntropy::default().z_loss(1e-4);
    /// let loss = linear_cross_entropy(&hidden, &weight, &targets, &options)?.to_scalar::<f32>()?;
    /// let log = 4f32.ln();
    /// assert!((loss - (log + 1e-4 * log * log)).abs() < 1e-6);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn z_loss(mut self, factor: f64) -> Self {
        self.z_loss = factor;
        self
    }

    /// Keeps logits between −`cap` and `cap`, by cap · tanh(logit / cap), after the bias (Gemma 2, arXiv 2408.00118). Positive and
    /// finite.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::loss::{LinearCrossEntropy, linear_cross_entropy};
    ///
    /// let hidden = Tensor::zeros((2, 8), DType::F32, &Device::Cpu)?; // [tokens, width]
    /// let weight = Tensor::zeros((4, 8), DType::F32, &Device::Cpu)?; // [classes, width]: all logits are 0
    /// let targets = Tensor::new(&[1u32, 2], &Device::Cpu)?;
    /// let bias = Tensor::new(&[1000f32, 0., 0., 0.], &Device::Cpu)?;
    /// let options = LinearCrossEntropy::default().bias(&bias).softcap(1.); // 1000 becomes 1
    /// let loss = linear_cross_entropy(&hidden, &weight, &targets, &options)?.to_scalar::<f32>()?;
    /// assert!((loss - (1f32.exp() + 3.).ln()).abs() < 1e-5);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn softcap(mut self, cap: f64) -> Self {
        self.softcap = Some(cap);
        self
    }

    /// Computes so many rows of logits at a time, at least 1, instead of a number chosen from sizes and memory.
    ///
    /// Fewer rows take less memory and more launches. The result changes within rounding.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::loss::{LinearCrossEntropy, linear_cross_entropy};
    ///
    /// let hidden = Tensor::randn(0f32, 1., (16, 8), &Device::Cpu)?; // [tokens, width]
    /// let weight = Tensor::randn(0f32, 1., (10, 8), &Device::Cpu)?; // [classes, width]
    /// let targets = Tensor::zeros(16, DType::U32, &Device::Cpu)?;
    /// let loss = |options: LinearCrossEntropy| {
    ///     linear_cross_entropy(&hidden, &weight, &targets, &options)?.to_scalar::<f32>()
    /// };
    /// let by_four = loss(LinearCrossEntropy::default().chunk_rows(4))?;
    /// assert!((by_four - loss(LinearCrossEntropy::default())?).abs() < 1e-4);
    /// assert!(loss(LinearCrossEntropy::default().chunk_rows(0)).is_err());
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn chunk_rows(mut self, rows: usize) -> Self {
        self.chunk_rows = Some(rows);
        self
    }

    pub(super) fn rule(&self) -> Result<Rule> {
        let (smoothing, z_loss) = (self.label_smoothing, self.z_loss);
        if !(0. ..1.).contains(&smoothing) {
            bail!("{NAME}: label_smoothing must be in [0, 1), got {smoothing}")
        }
        if !(z_loss.is_finite() && z_loss >= 0.) {
            bail!("{NAME}: z_loss must be finite and at least 0, got {z_loss}")
        }
        if let Some(cap) = self.softcap
            && !(cap.is_finite() && cap > 0.)
        {
            bail!("{NAME}: softcap must be positive and finite, got {cap}")
        }
        if self.chunk_rows == Some(0) {
            bail!("{NAME}: chunk_rows must be at least 1, got 0")
        }
        Ok(Rule {
            smoothing,
            z_loss,
            softcap: self.softcap,
        })
    }
}

/// The loss of a token, as a function of its logits.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    pub smoothing: f64,
    pub z_loss: f64,
    pub softcap: Option<f64>,
}

/// What turns some rows of logits into losses.
#[derive(Debug)]
pub struct Arguments<'a> {
    pub rule: Rule,
    /// i64, contiguous, one for each row.
    pub targets: &'a Tensor,
    /// The target of a row that is ignored.
    pub none: i64,
    /// In the type of the logits, contiguous, one for each row.
    pub weights: Option<&'a Tensor>,
    /// In the type of the logits, contiguous, one for each class.
    pub bias: Option<&'a Tensor>,
    /// Whether gradients are asked for.
    pub differentiates: bool,
}

/// What the largest weight of a token becomes in f16. No gradient exceeds a token's weight, but for the z-loss.
const LARGEST: f64 = 16384.;
/// log Σ e^logit up to which the z-loss makes no gradient larger.
const WHOLE: f64 = 1024.;
/// Divides weights that are all 0.
const LEAST: f64 = 1e-30;

/// The targets of tokens, the weight of each, and that of all together.
pub struct Tokens {
    /// i64, contiguous, on the device of the logits.
    pub targets: Tensor,
    /// The target of a token that is ignored.
    pub none: i64,
    /// u8, 0 for a token that is ignored; `None` if no token can be ignored.
    pub counted: Option<Tensor>,
    /// In the type of sums, contiguous, on the device of the logits; 0 for a token that is ignored.
    pub weights: Option<Tensor>,
    pub total: Total,
}

impl Tokens {
    /// Checks targets for logits of so many classes in this type on a device. What lies on the CPU is read; what lies on another
    /// device is not, because that would wait for it.
    pub fn new(
        targets: &Tensor,
        options: &LinearCrossEntropy,
        classes: usize,
        (dtype, device): (DType, &Device),
    ) -> Result<Self> {
        let shape = targets.shape();
        let targets = targets.flatten_all()?;
        let len = targets.elem_count();
        let targets = Targets::new(&targets, len, targets.device())?;
        let weights = match &options.token_weights {
            Some(weights) if weights.shape() != shape => bail!(
                "{NAME}: token weights of shape {:?} for targets of shape {shape:?}",
                weights.shape()
            ),
            Some(weights) => Some(weights.flatten_all()?),
            None => None,
        };
        if len == 0 {
            // candle's operations launch nothing on CUDA, which is an error.
            return Ok(Self {
                targets: Tensor::zeros(0, DType::I64, &Device::Cpu)?,
                none: i64::MAX,
                counted: None,
                weights: None,
                total: Total::Known(0.),
            });
        }
        let targets = match options.ignore_index {
            Some(index) => targets.ignoring(index)?,
            None => targets,
        };
        let read_targets = match targets.tensor().device() {
            Device::Cpu => Some(targets.classes(classes)?),
            other if other.same_device(device) => None,
            other => bail!(
                "{NAME}: targets on {:?} for hidden states on {:?}: move them there, or to the CPU",
                other.location(),
                device.location()
            ),
        };
        let read_weights = match &weights {
            Some(weights) => read(weights)?,
            None => Some(vec![1.; len]),
        };
        let (targets, none) = targets.numbers()?;
        let targets = targets.to_device(device)?;
        let (counted, weights, total) = match read_targets.zip(read_weights) {
            Some((classes, known)) => {
                let tokens = classes.iter().zip(known);
                let known = tokens.map(|(class, weight)| class.map_or(0., |_| weight));
                let known: Vec<f64> = known.collect();
                let total = Total::Known(known.iter().sum());
                let counted = known.contains(&0.);
                let known = Tensor::new(known, &Device::Cpu)?.to_dtype(dtype)?;
                let known = known.to_device(device)?;
                let counted = counted.then(|| known.ne(0.)).transpose()?;
                (counted, weights.map(|_| known), total)
            }
            None => {
                let mut counted = targets.ne(none)?;
                let weights = match weights {
                    Some(weights) => {
                        let weights = weights.to_dtype(dtype)?.to_device(device)?;
                        let weights = zero_others(&counted, &weights.contiguous()?)?;
                        counted = weights.ne(0.)?;
                        Some(weights)
                    }
                    None => None,
                };
                let sum = weights.as_ref().unwrap_or(&counted);
                let total = Total::OnDevice(sum.to_dtype(dtype)?.sum_all()?);
                (Some(counted), weights, total)
            }
        };
        Ok(Self {
            targets,
            none,
            counted,
            weights,
            total,
        })
    }

    /// Weights of tokens, all multiplied so that f16 holds the gradients of logits, and what undoes that, one element.
    ///
    /// The largest weight decides, without waiting for the device. Without a z-loss, f16 then loses only gradients below
    /// 2⁻³⁹ of it (half of the least number of f16, 2⁻²⁴, over 2¹⁴), however small or large the weights are.
    pub fn in_range(&self, z_loss: f64, device: &Device) -> Result<(Tensor, Tensor)> {
        // A power of two, which rounds nothing.
        let largest = (LARGEST / (1. + 2. * z_loss * WHOLE)).log2().floor().exp2();
        let Some(weights) = &self.weights else {
            // CUDA may refuse to allocate nothing.
            let tokens = self.targets.elem_count().max(1);
            let weights = Tensor::full(largest as f32, tokens, device)?;
            return Ok((weights, Tensor::full(1. / largest as f32, (), device)?));
        };
        let unit = (at_least(&weights.max_all()?, LEAST)? / largest)?;
        Ok((weights.broadcast_div(&unit)?, unit))
    }
}

/// Weights on the CPU, after a check.
fn read(weights: &Tensor) -> Result<Option<Vec<f64>>> {
    if !weights.dtype().is_float() {
        bail!(
            "{NAME}: token weights must be floating-point numbers, got {:?}",
            weights.dtype()
        )
    }
    if !weights.device().is_cpu() {
        return Ok(None);
    }
    let values: Vec<f64> = weights.to_dtype(DType::F64)?.to_vec1()?;
    let wrong = |weight: &f64| !(weight.is_finite() && *weight >= 0.);
    if let Some(token) = values.iter().position(wrong) {
        let weight = values.get(token).copied().unwrap_or_default();
        bail!("{NAME}: the weight of token {token} is {weight}, it must be finite and at least 0")
    }
    Ok(Some(values))
}

/// The elements of a vector, or the rows of a matrix, with zeros where `counted` is 0, whatever was there, also NaN.
pub fn zero_others(counted: &Tensor, values: &Tensor) -> Result<Tensor> {
    let shape = values.shape();
    let counted = match values.rank() {
        1 => counted.clone(),
        _ => counted.unsqueeze(1)?.broadcast_as(shape)?,
    };
    let zeros = Tensor::zeros((), values.dtype(), values.device())?.broadcast_as(shape)?;
    counted.where_cond(values, &zeros)
}
