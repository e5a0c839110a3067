//! Losses and gradients, a chunk of logits at a time.

use candle_core::{DType, Result, Tensor};

use super::chunk::chunk_rows;
use super::options::{Arguments, Rule};
use super::product::multiply;
use super::rows::losses;
use super::tokens::{Tokens, zero_others};
use crate::kernel::sum_type;

/// What turns hidden states into a loss.
pub struct Pass {
    pub rule: Rule,
    pub tokens: Tokens,
    pub chunk_rows: Option<usize>,
}

/// The sum of the losses and its gradients.
pub struct Found {
    pub sum: Tensor,
    /// Matrices in the type of sums, where they are asked for: for hidden states, weight and bias.
    pub gradients: [Option<Tensor>; 3],
    /// One element, by which the gradients are still to be multiplied, if there is one.
    pub unit: Option<Tensor>,
}

/// Classes whose weights are multiplied at a time on the CPU: what a product of matrices copies stays small, and so do f32 copies
/// of f16 and bf16 weights.
const CLASSES_AT_ONCE: usize = 4096;

impl Pass {
    /// Hidden states (…, width), weight and bias are outside the graph.
    pub fn run(
        &self,
        hidden: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        needs: [bool; 3],
    ) -> Result<Found> {
        let (classes, width) = weight.dims2()?;
        let tokens = hidden.elem_count() / width.max(1);
        let (device, dtype) = (hidden.device(), sum_type(hidden.dtype()));
        // Without CUDA's products of f16 and bf16 with f32 sums, the operands are f32.
        let operand = match device.is_cuda() {
            true => hidden.dtype(),
            false => dtype,
        };
        let parts = Parts::new(weight, operand)?;
        let hidden = match hidden.rank() {
            2 => regular(hidden)?,
            _ => hidden.reshape((tokens, width))?,
        };
        let bias = bias.map(|bias| bias.to_dtype(dtype)?.contiguous());
        let bias = bias.transpose()?;
        let [needs_hidden, needs_weight, needs_bias] = needs;
        // Before the gradients take their part of the room.
        let rows = match self.chunk_rows {
            Some(rows) => rows.clamp(1, tokens.max(1)),
            None => chunk_rows(&hidden, classes, [needs_hidden, needs_weight])?,
        };
        let sums = |needed: bool, rows: usize, columns: usize| {
            // CUDA may refuse to allocate nothing.
            let zeros = || Tensor::zeros((rows.max(1), columns), dtype, device)?.narrow(0, 0, rows);
            needed.then(zeros).transpose()
        };
        let of_hidden = sums(needs_hidden, tokens, width)?;
        let of_weight = sums(needs_weight, classes, width)?;
        let of_bias = sums(needs_bias, 1, classes)?;
        let chunk = Tensor::zeros((rows, classes), dtype, device)?;
        let (weights, unit) = match operand {
            DType::F16 => {
                let (weights, unit) = self.tokens.in_range(self.rule.z_loss, device)?;
                (Some(weights), Some(unit))
            }
            _ => (self.tokens.weights.clone(), None),
        };
        let mut of_rows = vec![Tensor::zeros(1, dtype, device)?];
        for first in (0..tokens).step_by(rows) {
            let rows = rows.min(tokens - first);
            let mut states = hidden.narrow(0, first, rows)?.to_dtype(operand)?;
            if let (Some(counted), true) = (&self.tokens.counted, needs_weight) {
                // Their gradients are 0, but 0 times NaN is not.
                states = zero_others(&counted.narrow(0, first, rows)?, &states)?;
            }
            let logits = chunk.narrow(0, 0, rows)?;
            for (first, weight) in parts.iter() {
                let weight = weight?;
                let logits = logits.narrow(1, first, weight.dim(0)?)?;
                multiply(&logits, false, &states, &weight.t()?)?;
            }
            let targets = self.tokens.targets.narrow(0, first, rows)?;
            let weights = weights.as_ref();
            let weights = weights.map(|weights| weights.narrow(0, first, rows));
            let weights = weights.transpose()?;
            let arguments = Arguments {
                rule: self.rule,
                targets: &targets,
                none: self.tokens.none,
                weights: weights.as_ref(),
                bias: bias.as_ref(),
                differentiates: needs.contains(&true),
            };
            of_rows.push(losses(&arguments, &logits)?);
            if !arguments.differentiates {
                continue;
            }
            let slopes = logits.to_dtype(operand)?;
            for (first_class, weight) in parts.iter() {
                let weight = weight?;
                let classes = weight.dim(0)?;
                let slopes = slopes.narrow(1, first_class, classes)?;
                if let Some(sums) = &of_hidden {
                    multiply(&sums.narrow(0, first, rows)?, true, &slopes, &weight)?;
                }
                if let Some(sums) = &of_weight {
                    let sums = sums.narrow(0, first_class, classes)?;
                    multiply(&sums, true, &slopes.t()?, &states)?;
                }
            }
            if let Some(sums) = &of_bias {
                let ones = Tensor::ones((1, rows), operand, device)?;
                multiply(sums, true, &ones, &slopes)?;
            }
        }
        let of_bias = of_bias.map(|sums| sums.squeeze(0)).transpose()?;
        let sum = Tensor::cat(&of_rows, 0)?.sum_all()?;
        let sum = match &unit {
            Some(unit) => (sum * unit)?,
            None => sum,
        };
        Ok(Found {
            sum,
            gradients: [of_hidden, of_weight, of_bias],
            unit,
        })
    }
}

/// The rows of a weight, some at a time.
struct Parts {
    weight: Tensor,
    operand: DType,
    at_once: usize,
}

impl Parts {
    fn new(weight: &Tensor, operand: DType) -> Result<Self> {
        let classes = weight.dim(0)?;
        Ok(Self {
            weight: regular(weight)?,
            operand,
            at_once: match weight.device().is_cpu() {
                true => CLASSES_AT_ONCE,
                false => classes.max(1),
            },
        })
    }

    /// The number of the first row of a part, and the part.
    fn iter(&self) -> impl Iterator<Item = (usize, Result<Tensor>)> {
        let classes = self.weight.dims().first().copied().unwrap_or(0);
        let parts = (0..classes).step_by(self.at_once);
        parts.map(move |first| {
            let part = self
                .weight
                .narrow(0, first, self.at_once.min(classes - first));
            (first, part.and_then(|part| part.to_dtype(self.operand)))
        })
    }
}

/// The matrix, copied if CUDA's products do not take its strides.
fn regular(matrix: &Tensor) -> Result<Tensor> {
    let (rows, columns) = matrix.dims2()?;
    let takes = match *matrix.stride() {
        [row, 1] => row >= columns,
        [1, column] => column >= rows,
        _ => false,
    };
    match takes || matrix.device().is_cpu() {
        true => Ok(matrix.clone()),
        false => matrix.contiguous(),
    }
}
