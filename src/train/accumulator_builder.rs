use super::accumulator::{GradientAccumulator, Loading};
use super::reach::Reach;
use super::recent::Recent;
use super::report::StepReport;
use super::slots::Slots;
use crate::error::Result;
use crate::optim::Commit;

/// Builds a [`GradientAccumulator`]; made by [`GradientAccumulator::builder`].
#[derive(Debug)]
#[must_use = "call `build()`"]
pub struct GradientAccumulatorBuilder<O> {
    pub(super) optimizer: O,
    pub(super) reach: Reach,
}

impl<O: Commit> GradientAccumulatorBuilder<O> {
    /// Allows these parameters to receive no gradient; see
    /// [`AdaptiveTrainerBuilder::allow_unreached`](super::AdaptiveTrainerBuilder::allow_unreached).
    pub fn allow_unreached(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.reach = self.reach.allow(names);
        self
    }

    /// Sets the number of updates in which each parameter must receive a gradient, 1 by default; see
    /// [`AdaptiveTrainerBuilder::reach_within`](super::AdaptiveTrainerBuilder::reach_within).
    pub fn reach_within(mut self, updates: usize) -> Self {
        self.reach = self.reach.within(updates);
        self
    }

    /// Builds the accumulator. By default its first update fails if a parameter received no gradient.
    ///
    /// # Errors
    /// If the optimizer has no parameter to train, has one twice, or has one of a floating-point type other than f64, f32, f16 and bf16; if a
    /// name in [`allow_unreached`](Self::allow_unreached) matches no parameter, or [`reach_within`](Self::reach_within) is 0
    /// ([`is_parameter`](crate::Error::is_parameter)).
    pub fn build(self) -> Result<GradientAccumulator<O>> {
        self.reach.check(&self.optimizer)?;
        let mut slots = Slots::new(self.reach);
        slots.follow(self.optimizer.parameters())?;
        Ok(GradientAccumulator {
            optimizer: self.optimizer,
            slots,
            window: StepReport::default(),
            updates: 0,
            batches: 0,
            is_interrupted: false,
            loading: Loading::Never,
            recent: Recent::default(),
        })
    }
}

impl<O: Commit> GradientAccumulator<O> {
    /// Accumulates gradients for this optimizer.
    pub fn builder(optimizer: O) -> GradientAccumulatorBuilder<O> {
        GradientAccumulatorBuilder {
            optimizer,
            reach: Reach::default(),
        }
    }
}
