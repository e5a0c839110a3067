use candle_core::Tensor;

use super::accumulator::GradientAccumulator;
use super::loss::{Loss, Weighted};
use crate::batch::run_phase;
use crate::error::{Phase, Result, WindowLost};
use crate::optim::Commit;

/// The gradients of a micro-batch, before they are added.
pub(super) struct Contribution {
    loss: Weighted,
    samples: usize,
    /// One for each slot; none for a loss of weight 0.
    gradients: Vec<Option<Tensor>>,
}

impl<O: Commit> GradientAccumulator<O> {
    /// Runs the backward pass of the scaled loss.
    pub(super) fn differentiate(&self, loss: Loss, samples: usize) -> Result<Contribution> {
        let loss = loss.weighted(samples)?;
        let mut gradients = Vec::new();
        if loss.weight > 0. {
            gradients = run_phase(Phase::Backward, || {
                (self.slots).differentiate(&self.optimizer().scale_loss(&loss.value)?)
            })?;
        }
        Ok(Contribution {
            loss: loss.detached(),
            samples,
            gradients,
        })
    }

    /// Adds gradients: first everything that can run out of memory, then the means in place.
    pub(super) fn accumulate(&mut self, added: Contribution) -> Result<()> {
        run_phase(Phase::Accumulate, || self.slots.prepare(&added.gradients))?;
        if added.loss.weight > 0. {
            self.blend(&added.loss, added.gradients)?;
            self.window.loss.push(&added.loss);
        }
        self.window.samples = self.window.samples.saturating_add(added.samples);
        self.window.sizes.push(added.samples);
        Ok(())
    }

    /// The running weighted mean: with W the weight so far and w the new one, `mean · W/(W+w) + gradient · factor/(W+w)`.
    fn blend(&mut self, loss: &Weighted, gradients: Vec<Option<Tensor>>) -> Result<()> {
        let before = self.window.loss.weight();
        let total = before + loss.weight;
        let (keep, add) = (before / total, loss.factor / total);
        let mut pairs = self.slots.iter_mut().zip(gradients).enumerate();
        let blended = pairs.try_for_each(|(index, (slot, gradient))| {
            run_phase(Phase::Accumulate, || slot.blend(keep, add, gradient))
                .map_err(|reason| (index, reason))
        });
        drop(pairs);
        match blended {
            Ok(()) => Ok(()),
            // Nothing has changed yet.
            Err((0, reason)) => Err(reason),
            Err((_, reason)) => match self.reset() {
                0 => Err(reason),
                samples => Err(WindowLost::new(samples, reason).into()),
            },
        }
    }
}
