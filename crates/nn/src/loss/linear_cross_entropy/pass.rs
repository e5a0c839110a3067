//! Losses and gradients, a chunk of logits at a time.

use candle_core::{DType, Device, Error, Result, Tensor, bail};
use parking_lot::Mutex;

use super::classes::Classes;
use super::rows::{losses, scale};
use super::tokens::{Arguments, LinearCrossEntropy, NAME, Rule, Tokens, zero_others};
use crate::graph::{Backward, Gradients, record};
use crate::kernel::{dense, multiply, same_device, same_type, sum_type};
use crate::quantized::FrozenWeight;
use crate::scope::current;

/// What turns hidden states into a loss.
pub struct Pass {
    rule: Rule,
    tokens: Tokens,
    chunk_rows: Option<usize>,
}

/// The sum of the losses and its gradients.
struct Found {
    sum: Tensor,
    /// Matrices in the type of sums, where they are asked for: for hidden states, weight and bias.
    gradients: [Option<Tensor>; 3],
    /// One element, by which the gradients are still to be multiplied, if there is one.
    unit: Option<Tensor>,
}

/// Classes whose weights are multiplied at a time on the CPU: what a product of matrices copies stays small, and so do f32 copies
/// of f16 and bf16 weights.
const CLASSES_AT_ONCE: usize = 4096;

impl Pass {
    /// Checks shapes, types, devices, targets and options.
    pub fn new(
        hidden: &Tensor,
        weight: Classes,
        targets: &Tensor,
        options: &LinearCrossEntropy,
    ) -> Result<Self> {
        let (of_hidden, of_weight) = (hidden.shape(), weight.shape()?);
        let (classes, tokens) = match (of_weight.dims(), hidden.dims()) {
            (&[classes, width], [tokens @ .., last])
                if classes > 0 && width > 0 && width == *last =>
            {
                (classes, tokens)
            }
            _ => bail!(
                "{NAME}: hidden of shape {of_hidden:?} needs a weight (classes, width), got {of_weight:?}"
            ),
        };
        let bias = options.bias.as_ref();
        if let Some(bias) = bias.filter(|bias| bias.dims() != [classes]) {
            bail!(
                "{NAME}: a weight of shape {of_weight:?} needs a bias (classes), got {:?}",
                bias.shape()
            )
        }
        if !hidden.dtype().is_float() {
            return Err(Error::UnsupportedDTypeForOp(hidden.dtype(), NAME).bt());
        }
        for other in [weight.tensor(), bias].into_iter().flatten() {
            same_type(NAME, hidden.dtype(), other.dtype())?;
        }
        let places = [
            Some(weight.device()),
            bias.map(|bias| bias.device().clone()),
        ];
        for place in places.iter().flatten() {
            same_device(NAME, hidden.device(), place)?;
        }
        let rule = options.rule()?;
        if tokens != targets.dims() {
            bail!(
                "{NAME}: hidden of shape {of_hidden:?} needs targets of its shape without the width, got {:?}",
                targets.shape()
            )
        }
        let kind = (sum_type(hidden.dtype()), hidden.device());
        Ok(Self {
            rule,
            tokens: Tokens::new(targets, options, classes, kind)?,
            chunk_rows: options.chunk_rows,
        })
    }

    /// The weight of all tokens, which may have to be read from the device.
    pub fn total(&self) -> Result<f64> {
        self.tokens.total.read()
    }

    /// The sum of the losses, or their mean, as an operation of candle's graph that keeps its gradients.
    pub fn loss(
        self,
        hidden: &Tensor,
        weight: Classes,
        bias: Option<&Tensor>,
        averages: bool,
    ) -> Result<Tensor> {
        let needs = [Some(hidden), weight.tensor(), bias];
        let needs = needs.map(|input| input.is_some_and(Tensor::track_op));
        let detached = bias.map(Tensor::detach);
        let constant = weight.frozen();
        let found = self.run(&hidden.detach(), &constant, detached.as_ref(), needs)?;
        let sum = found.sum.clone();
        let kept = Kept {
            pass: self,
            weight: constant,
            averages,
            has_bias: bias.is_some(),
            found: Mutex::new(Some(found)),
        };
        let loss = kept.of_sum(&sum)?;
        let none = hidden.detach();
        let inputs = [
            hidden,
            weight.tensor().unwrap_or(&none),
            bias.unwrap_or(&none),
        ];
        record(NAME, inputs, loss, move |given| kept.take(given))
    }

    /// Hidden states (…, width), weight and bias are outside the graph.
    fn run(
        &self,
        hidden: &Tensor,
        weight: &FrozenWeight,
        bias: Option<&Tensor>,
        needs: [bool; 3],
    ) -> Result<Found> {
        let (classes, width) = weight.dims()?;
        let tokens = hidden.elem_count() / width.max(1);
        let (device, dtype) = (hidden.device(), sum_type(hidden.dtype()));
        // Without CUDA's products of f16 and bf16 with f32 sums, the operands are f32.
        let operand = match device.is_cuda() {
            true => hidden.dtype(),
            false => dtype,
        };
        let weight = match weight {
            FrozenWeight::Tensor(weight) => regular(weight)?.into(),
            weight => weight.clone(),
        };
        // The first class and the number of classes whose weights are multiplied at a time.
        let parts = match &weight {
            FrozenWeight::Tensor(_) if device.is_cpu() => {
                let firsts = (0..classes).step_by(CLASSES_AT_ONCE);
                firsts
                    .map(|first| (first, CLASSES_AT_ONCE.min(classes - first)))
                    .collect()
            }
            FrozenWeight::Tensor(_) => vec![(0, classes)],
            weight => weight.parts(operand)?,
        };
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
            None => {
                let least = match &weight {
                    FrozenWeight::Tensor(_) => LEAST_ROWS,
                    _ => LEAST_ROWS_OF_FEW_BITS,
                };
                chunk_rows(&hidden, classes, [needs_hidden, needs_weight], least)?
            }
        };
        let sums = |needed: bool, rows: usize, columns: usize| {
            // CUDA may refuse to allocate nothing.
            let zeros = || Tensor::zeros((rows.max(1), columns), dtype, device)?.narrow(0, 0, rows);
            needed.then(zeros).transpose()
        };
        let of_hidden = sums(needs_hidden, tokens, width)?;
        let of_weight = sums(needs_weight, classes, width)?;
        let of_bias = sums(needs_bias, 1, classes)?;
        let ones = needs_bias.then(|| Tensor::ones((1, rows), operand, device));
        let ones = ones.transpose()?;
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
            for &(first, len) in &parts {
                let weight = weight.rows((first, len), operand)?;
                multiply(&logits.narrow(1, first, len)?, false, &states, &weight.t()?)?;
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
            for &(first_class, classes) in &parts {
                let slopes = slopes.narrow(1, first_class, classes)?;
                if let Some(sums) = &of_hidden {
                    let weight = weight.rows((first_class, classes), operand)?;
                    multiply(&sums.narrow(0, first, rows)?, true, &slopes, &weight)?;
                }
                if let Some(sums) = &of_weight {
                    let sums = sums.narrow(0, first_class, classes)?;
                    multiply(&sums, true, &slopes.t()?, &states)?;
                }
            }
            if let (Some(sums), Some(ones)) = (&of_bias, &ones) {
                multiply(sums, true, &ones.narrow(1, 0, rows)?, &slopes)?;
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

struct Kept {
    pass: Pass,
    /// Outside the graph.
    weight: FrozenWeight,
    averages: bool,
    has_bias: bool,
    /// A backward pass takes the gradients, so that it can change them in place.
    found: Mutex<Option<Found>>,
}

impl Kept {
    /// Divides what belongs to a sum, if the loss is the mean.
    fn of_sum(&self, sum: &Tensor) -> Result<Tensor> {
        match self.averages {
            true => self.pass.tokens.total.mean(sum),
            false => Ok(sum.clone()),
        }
    }

    fn take(&self, given: Backward<3>) -> Result<Gradients<3>> {
        let found = self.found.lock().take();
        let found = match found {
            Some(found) => found,
            None => {
                let [hidden, _, bias] = &given.inputs;
                let bias = self.has_bias.then_some(bias);
                (self.pass).run(hidden, &self.weight, bias, given.needs)?
            }
        };
        let mut factor = self.of_sum(&given.gradient)?;
        if let Some(unit) = &found.unit {
            factor = (factor * unit)?;
        }
        let mut scaled: Gradients<3> = [None, None, None];
        for ((scaled, input), gradient) in scaled.iter_mut().zip(&given.inputs).zip(found.gradients)
        {
            let Some(gradient) = gradient else {
                continue;
            };
            if gradient.elem_count() == 0 {
                *scaled = Some(input.zeros_like()?);
                continue;
            }
            scale(&gradient, &factor)?;
            // After scaling, so that f16 loses no small gradients that the loss's factor makes large enough.
            *scaled = Some(gradient.to_dtype(input.dtype())?.reshape(input.shape())?);
        }
        Ok(scaled)
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
        false => dense("linear_cross_entropy", matrix),
    }
}

/// More rows make the products no faster. On a GPU each chunk reads and writes all of the gradient of the weight: with 4,096 tokens and 128,256
/// classes of 4,096 numbers an H200 took 12.9 ms for that gradient with 512 rows, and 6.4 ms with 2,048.
fn most_rows(device: &Device) -> usize {
    if device.is_cpu() { 512 } else { 2048 }
}

/// With fewer rows the products are bound by reading the weight.
const LEAST_ROWS: usize = 64;
/// Each chunk dequantizes all classes, twice where there are gradients.
const LEAST_ROWS_OF_FEW_BITS: usize = 256;
/// Smaller chunks save nothing worth their time.
const LEAST_LOGITS: usize = 1 << 18;

/// How many rows of hidden states (tokens, width) to multiply at a time: a power of two, or all if there are fewer, but at least 1. Whether
/// gradients of hidden states and of the weight are computed decides with the sizes.
///
/// Where the gradient of the weight is computed, its sum in candle's backward pass takes that gradient's size twice more, so
/// logits of its size do not raise the peak: `width` rows, and a third of that where logits of f32 become gradients of 16 bits beside
/// them. Elsewhere logits take about as much as the hidden states (Liger's
/// rule). Both are limited to half of the room that the trainer's memory has left besides the gradients, but not below
/// [`LEAST_ROWS`]: a policy fills the room with samples, which would leave one row to a chunk.
fn chunk_rows(hidden: &Tensor, classes: usize, needs: [bool; 2], least: usize) -> Result<usize> {
    let (tokens, width) = hidden.dims2()?;
    let [of_hidden, of_weight] = needs.map(usize::from);
    let is_rounded =
        !hidden.device().is_cpu() && matches!(hidden.dtype(), DType::F16 | DType::BF16);
    let mut rows = match of_weight {
        1 if is_rounded => width / 3,
        1 => width,
        _ => tokens.saturating_mul(width) / classes,
    };
    rows = rows
        .clamp(least, most_rows(hidden.device()))
        .max(LEAST_LOGITS / classes);
    if let Some(room) = current().and_then(|around| around.room(hidden.device())) {
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let mut of_number = sum_type(hidden.dtype()).size_in_bytes();
        let gradients = (of_hidden * tokens + of_weight * classes).saturating_mul(width);
        let room = room.saturating_sub(gradients.saturating_mul(of_number)) / 2;
        if is_rounded {
            // The gradients of logits are also rounded, for the products.
            of_number += hidden.dtype().size_in_bytes();
        }
        rows = rows.min((room / of_number / classes).max(LEAST_ROWS));
    }
    Ok((1 << rows.ilog2()).min(tokens.max(1)))
}
