use candle_core::{Device, Tensor};

use super::accumulator::GradientAccumulator;
use super::buffers::Buffers;
use super::report::StepReport;
use crate::batch::{Engine, Event, Measured, Processed, conclude};
use crate::error::{Error, Holding, Phase, Remedy, Result, WindowLost};
use crate::memory::{DeviceMemory, recover, unmask};
use crate::optim::Commit;

/// The state that a trainer's step changes: accumulated gradients, named buffers, and the updated parameters.
#[derive(Debug)]
pub(super) struct Core<O> {
    pub(super) accumulator: GradientAccumulator<O>,
    /// Named buffers as they were when the window began.
    pub(super) at_window: Buffers,
    /// The same at the beginning of a micro-batch.
    pub(super) at_micro_batch: Buffers,
    /// Samples of earlier batches that were lost when a closure panicked, until that is reported.
    pub(super) lost: Option<usize>,
}

impl<O: Commit> Core<O> {
    pub(super) fn new(optimizer: O, buffers: &[Tensor]) -> Result<Self> {
        Ok(Self {
            accumulator: GradientAccumulator::builder(optimizer).build()?,
            at_window: Buffers::new(buffers)?,
            at_micro_batch: Buffers::new(buffers)?,
            lost: None,
        })
    }

    /// Prepares for a batch, which may be the first one of a window.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.report_lost()?;
        self.accumulator.begin()?;
        match self.accumulator.samples() {
            0 => self.at_window.save(),
            _ => Ok(()),
        }
    }

    /// Reports once that a panic lost earlier batches.
    pub(super) fn report_lost(&mut self) -> Result<()> {
        match self.lost.take() {
            Some(samples) => {
                let reason = candle_core::Error::Msg("the closure panicked".to_owned());
                Err(WindowLost::new(samples, Error::from(reason)).into())
            }
            None => Ok(()),
        }
    }

    /// Applies the update. Completes an exhaustion in it, and reports if it went over a soft limit.
    pub(super) fn update(
        &mut self,
        engine: &Engine,
        processed: &mut Processed<()>,
    ) -> Result<StepReport> {
        let memory = engine.memory.as_ref();
        let _turn = memory.map(DeviceMemory::turn);
        let measured = Measured::begin(memory);
        let commit = || self.commit(&engine.device);
        let mut report =
            (engine.observers).phase(engine.batches, Phase::Optimizer, &measured, commit);
        if let Err(Error::ResourceExhausted(exhausted)) = &mut report {
            let (held, remedies) = self.held();
            exhausted.held = held;
            measured.describe(None, exhausted);
            conclude(exhausted, false, memory, remedies);
        }
        let report = report?;
        let known = measured.peak().zip(measured.limit());
        if let Some((peak, limit)) = known.filter(|(peak, limit)| peak > limit) {
            // No micro-batch size would have helped, so this is reported and changes nothing.
            let event = Event::OverLimit { peak, limit };
            tracing::warn!("{event}");
            engine.happened(event, &mut processed.events);
        }
        processed.updated = report.updated;
        Ok(report)
    }

    fn commit(&mut self, device: &Device) -> Result<StepReport> {
        let mut report = self.accumulator.commit();
        if let Err(Error::ResourceExhausted(_)) = report {
            // Nothing has changed. The graph is gone and the device is idle, so a second attempt may succeed.
            recover(device)?;
            report = self.accumulator.commit();
        }
        report.map_err(|error| unmask(error, device))
    }

    /// Returns the memory held by what is trained, and what would reduce it.
    pub(super) fn held(&self) -> (Vec<Holding>, Vec<Remedy>) {
        let optimizer = self.accumulator.optimizer();
        let (parameters, gradients) = self.accumulator.bytes();
        let mut held = vec![
            Holding::new("parameters", parameters),
            Holding::new("accumulated gradients", gradients),
        ];
        let state = optimizer.state_bytes();
        held.extend(state.map(|bytes| Holding::new("optimizer state", bytes)));
        (held, optimizer.remedies())
    }

    /// Drops the window after an update failed within a step: giving the batch again must not count it twice.
    pub(super) fn lose_window(&mut self, earlier: usize, reason: Error) -> Error {
        let samples = self.accumulator.samples();
        self.abandon();
        match (earlier, samples) {
            (0, _) | (_, 0) => reason,
            _ => WindowLost::new(samples, reason).into(),
        }
    }

    /// Drops the window and restores the buffers.
    pub(super) fn abandon(&mut self) {
        self.accumulator.reset();
        self.at_window.restore();
    }
}
