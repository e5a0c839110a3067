//! The loss as an operation of candle's graph, which keeps its gradients.

use candle_core::{Result, Tensor};
use parking_lot::Mutex;

use super::inputs::{Inputs, NAME};
use super::pass::{Found, Pass};
use super::scale::scale;
use crate::nn::graph::{Backward, Gradients, record};
use crate::nn::kernel::mismatch;

/// The sum of the losses, or their mean.
pub fn loss(inputs: &Inputs, pass: Pass, averages: bool) -> Result<Tensor> {
    let (hidden, weight) = (inputs.hidden, inputs.weight);
    let needs = [Some(hidden), Some(weight), inputs.bias];
    let needs = needs.map(|input| input.is_some_and(Tensor::track_op));
    let bias = inputs.bias.map(Tensor::detach);
    let found = pass.run(&hidden.detach(), &weight.detach(), bias.as_ref(), needs)?;
    let Found { sum, gradients } = found;
    let kept = Kept {
        pass,
        averages,
        gradients: Mutex::new(Some(gradients)),
    };
    let loss = kept.of_sum(&sum)?;
    match inputs.bias {
        None => record(NAME, [hidden, weight], loss, move |given| kept.take(given)),
        Some(bias) => record(NAME, [hidden, weight, bias], loss, move |given| {
            kept.take(given)
        }),
    }
}

struct Kept {
    pass: Pass,
    averages: bool,
    /// Of the sum. A backward pass takes them, so that it can change them in place.
    gradients: Mutex<Option<[Option<Tensor>; 3]>>,
}

impl Kept {
    /// Divides what belongs to a sum, if the loss is the mean.
    fn of_sum(&self, sum: &Tensor) -> Result<Tensor> {
        match self.averages {
            true => self.pass.tokens.total.mean(sum),
            false => Ok(sum.clone()),
        }
    }

    fn take<const N: usize>(&self, given: Backward<N>) -> Result<Gradients<N>> {
        let kept = self.gradients.lock().take();
        let gradients = match (kept, given.inputs.as_slice(), given.needs.as_slice()) {
            (Some(gradients), ..) => gradients,
            (None, [hidden, weight], &[of_hidden, of_weight]) => {
                let needs = [of_hidden, of_weight, false];
                self.pass.run(hidden, weight, None, needs)?.gradients
            }
            (None, [hidden, weight, bias], &[of_hidden, of_weight, of_bias]) => {
                let needs = [of_hidden, of_weight, of_bias];
                self.pass.run(hidden, weight, Some(bias), needs)?.gradients
            }
            _ => return Err(mismatch(NAME)),
        };
        let factor = self.of_sum(&given.gradient)?;
        let mut scaled = std::array::from_fn(|_| None);
        for ((scaled, input), gradient) in scaled.iter_mut().zip(&given.inputs).zip(gradients) {
            let Some(gradient) = gradient else {
                continue;
            };
            if gradient.elem_count() == 0 {
                *scaled = Some(input.zeros_like()?);
                continue;
            }
            scale(&gradient, &factor)?;
            // Rounded once, after scaling, which keeps small gradients of f16.
            *scaled = Some(gradient.to_dtype(input.dtype())?.reshape(input.shape())?);
        }
        Ok(scaled)
    }
}
