//! `nn::loss::linear_cross_entropy` against logits and plain operations.

mod inputs;
mod options;

use candle_core::{D, DType, Device, Result, Tensor};
use candle_headroom_nn::loss::LinearCrossEntropy;

/// Options, and the same as plain operations.
#[derive(Debug, Clone, Default)]
pub struct Plain {
    pub smoothing: f64,
    pub z_loss: f64,
    pub softcap: Option<f64>,
    pub ignored: Option<i64>,
    pub weights: Option<Tensor>,
}

impl Plain {
    /// All that can interact, for targets of this shape.
    pub fn everything(shape: &[usize]) -> Result<Self> {
        let count: usize = shape.iter().product();
        let weights = (0..count).map(|token| (token % 5) as f64 / 4.);
        Ok(Self {
            smoothing: 0.1,
            z_loss: 0.01,
            softcap: Some(1.5),
            ignored: Some(2),
            weights: Some(Tensor::from_iter(weights, &Device::Cpu)?.reshape(shape)?),
        })
    }

    pub fn options(&self, device: &Device) -> Result<LinearCrossEntropy> {
        let mut options = LinearCrossEntropy::default()
            .label_smoothing(self.smoothing)
            .z_loss(self.z_loss);
        if let Some(cap) = self.softcap {
            options = options.softcap(cap);
        }
        if let Some(index) = self.ignored {
            options = options.ignore_index(index);
        }
        if let Some(weights) = &self.weights {
            options = options.token_weights(&weights.to_device(device)?);
        }
        Ok(options)
    }

    /// The sum of the losses and of the weights, in f64.
    pub fn sum(&self, inputs: &[Tensor], targets: &Tensor) -> Result<(Tensor, f64)> {
        let width = inputs[0].dim(D::Minus1)?;
        let hidden = inputs[0].contiguous()?.reshape(((), width))?;
        let mut logits = hidden.matmul(&inputs[1].t()?.contiguous()?)?;
        if let Some(bias) = inputs.get(2) {
            logits = logits.broadcast_add(bias)?;
        }
        if let Some(cap) = self.softcap {
            logits = ((logits / cap)?.tanh()? * cap)?;
        }
        let max = logits.detach().max_keepdim(D::Minus1)?;
        let sums = logits.broadcast_sub(&max)?.exp()?.sum_keepdim(D::Minus1)?;
        let wholes = (sums.log()? + max)?;
        let logs = logits.broadcast_sub(&wholes)?;
        let targets: Vec<i64> = targets.flatten_all()?.to_dtype(DType::I64)?.to_vec1()?;
        let counts = targets.iter().map(|target| Some(*target) != self.ignored);
        let counts = counts.map(|counts| f64::from(u8::from(counts)));
        let mut weights = Tensor::from_iter(counts, &Device::Cpu)?;
        if let Some(of_tokens) = &self.weights {
            weights = (weights * of_tokens.flatten_all()?)?;
        }
        let classes = logs.dim(1)? as u32;
        let read = targets
            .iter()
            .map(|target| (*target).clamp(0, classes.into()) as u32);
        let read = Tensor::from_iter(read, &Device::Cpu)?.unsqueeze(1)?;
        let of_targets = (logs.gather(&read, 1)? * (self.smoothing - 1.))?;
        let of_all = (logs.mean_keepdim(1)? * -self.smoothing)?;
        let losses = ((of_targets + of_all)? + (wholes.sqr()? * self.z_loss)?)?;
        let sum = (losses.squeeze(1)? * &weights)?.sum_all()?;
        Ok((sum, weights.sum_all()?.to_scalar()?))
    }

    pub fn mean(&self, inputs: &[Tensor], targets: &Tensor) -> Result<Tensor> {
        let (sum, weight) = self.sum(inputs, targets)?;
        sum / weight
    }
}

/// Targets of this shape, below `classes`; some are 2.
pub fn targets(shape: &[usize], classes: usize) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let targets = (0..count).map(|token| ((token * 7 + 3) % classes) as i64);
    Tensor::from_iter(targets, &Device::Cpu)?.reshape(shape)
}
