//! The loss as an operation of candle's graph, which keeps its gradients.

use candle_core::{Result, Tensor};
use parking_lot::Mutex;

use super::inputs::{Inputs, NAME};
use super::pass::{Found, Pass};
use super::product::scale;
use crate::graph::{Backward, Gradients, record};
use crate::kernel::mismatch;

/// The sum of the losses, or their mean.
pub fn loss(inputs: &Inputs, pass: Pass, averages: bool) -> Result<Tensor> {
    let (hidden, weight) = (inputs.hidden, inputs.weight);
    let needs = [Some(hidden), Some(weight), inputs.bias];
    let needs = needs.map(|input| input.is_some_and(Tensor::track_op));
    let bias = inputs.bias.map(Tensor::detach);
    let found = pass.run(&hidden.detach(), &weight.detach(), bias.as_ref(), needs)?;
    let sum = found.sum.clone();
    let kept = Kept {
        pass,
        averages,
        found: Mutex::new(Some(found)),
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

    fn take<const N: usize>(&self, given: Backward<N>) -> Result<Gradients<N>> {
        let found = self.found.lock().take();
        let found = match (found, given.inputs.as_slice()) {
            (Some(found), _) => found,
            (None, [hidden, weight, bias @ ..]) => {
                let mut needs = [false; 3];
                needs
                    .iter_mut()
                    .zip(given.needs)
                    .for_each(|(need, of)| *need = of);
                self.pass.run(hidden, weight, bias.first(), needs)?
            }
            _ => return Err(mismatch(NAME)),
        };
        let mut factor = self.of_sum(&given.gradient)?;
        if let Some(unit) = &found.unit {
            factor = (factor * unit)?;
        }
        let mut scaled = std::array::from_fn(|_| None);
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
