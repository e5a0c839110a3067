//! Targets and weights of tokens, checked where they can be read without waiting for a device, and scaled so that f16 holds the gradients of
//! logits.

use candle_core::{DType, Device, Result, Tensor, bail};

use super::options::LinearCrossEntropy;
use crate::loss::targets::{Targets, Total};

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
                "linear_cross_entropy: token weights of shape {:?} for targets of shape {shape:?}",
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
                "linear_cross_entropy: targets on {:?} for hidden states on {:?}: move them there, or to the CPU",
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
        let unit = (weights.max_all()?.maximum(LEAST)? / largest)?;
        Ok((weights.broadcast_div(&unit)?, unit))
    }
}

/// Weights on the CPU, after a check.
fn read(weights: &Tensor) -> Result<Option<Vec<f64>>> {
    if !weights.dtype().is_float() {
        bail!(
            "linear_cross_entropy: token weights must be floating-point numbers, got {:?}",
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
        bail!(
            "linear_cross_entropy: the weight of token {token} is {weight}, it must be finite and at least 0"
        )
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
