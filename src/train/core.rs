use candle_core::{Device, Tensor};

use super::accumulator::{Contribution, GradientAccumulator};
use super::buffers::Buffers;
use super::loss::Loss;
use super::summary::UpdateSummary;
use crate::batch::{Attempt, Batch, Failure, MicroBatch, Work};
use crate::error::{Error, Holding, Phase, Remedy, Result, WindowLost};
use crate::memory::{recover, unmask};
use crate::optim::Commit;

/// The state that a trainer's step changes, and how it is rolled back: accumulated gradients and named buffers.
#[derive(Debug)]
pub(super) struct Core<O> {
    pub(super) accumulator: GradientAccumulator<O>,
    buffers: Buffers,
    device: Device,
    /// Number of updates.
    pub(super) updates: u64,
    /// Samples of earlier batches that were lost when a closure panicked, until that is reported.
    lost: Option<usize>,
}

impl<O: Commit> Core<O> {
    pub(super) fn new(optimizer: O, buffers: &[Tensor]) -> Result<Self> {
        let accumulator = GradientAccumulator::builder(optimizer).build()?;
        Ok(Self {
            device: accumulator.device(),
            accumulator,
            buffers: Buffers::new(buffers)?,
            updates: 0,
            lost: None,
        })
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Prepares for a batch, which may be the first one of a window.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.report_lost()?;
        self.accumulator.begin()?;
        match self.accumulator.samples() {
            0 => self.buffers.save_window(),
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

    /// Processes one micro-batch and adds its gradients, or leaves everything as it was.
    fn micro_batch<'b, B, L>(
        &mut self,
        attempt: &Attempt<'_>,
        batch: &'b B,
        f: &mut impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<L>,
    ) -> Result<(), Failure>
    where
        B: Batch + ?Sized,
        L: Into<Loss>,
    {
        self.buffers.save_micro_batch()?;
        // A `WindowLost` from within the closure belongs to another accumulator and says nothing about this one.
        let failure = match self.contribution(attempt, batch, f) {
            Err(error) => Failure::MicroBatch(error),
            Ok(contribution) => match attempt.observe(Phase::Accumulate, || {
                self.accumulator.accumulate(contribution)
            }) {
                Ok(()) => return Ok(()),
                Err(error @ Error::WindowLost(_)) => Failure::Batch(error),
                Err(error) => Failure::MicroBatch(error),
            },
        };
        let restored = match failure {
            Failure::Batch(_) => self.buffers.restore_window(),
            _ => self.buffers.restore_micro_batch(),
        };
        match restored {
            Ok(()) => Err(failure),
            Err(restore) => {
                log_unrestored(&restore);
                Err(Failure::Final(match failure.into_error() {
                    // A lost device matters more than the lost window.
                    Error::WindowLost(lost) if matches!(lost.reason, Error::DeviceFault(_)) => {
                        lost.reason
                    }
                    error => error,
                }))
            }
        }
    }

    fn contribution<'b, B, L>(
        &self,
        attempt: &Attempt<'_>,
        batch: &'b B,
        f: &mut impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<L>,
    ) -> Result<Contribution>
    where
        B: Batch + ?Sized,
        L: Into<Loss>,
    {
        let samples = attempt.micro.samples.clone();
        let size = samples.len();
        let slice = attempt.run(Phase::Transfer, || batch.slice(samples))?;
        let loss: Loss = attempt
            .run(Phase::Forward, || f(slice, &attempt.micro))?
            .into();
        // The backward pass needs more memory than the forward pass left, so this is the moment to stop.
        attempt.end_forward()?;
        let contribution = attempt.observe(Phase::Backward, || {
            self.accumulator.differentiate(loss, size)
        })?;
        if size == 1 {
            // A larger micro-batch that went over a soft limit is kept and the next one is smaller; this one cannot be.
            attempt.check(Phase::Backward)?;
        }
        Ok(contribution)
    }

    /// Applies the update; `None` if nothing had weight.
    pub(super) fn update(&mut self) -> Result<Option<UpdateSummary>> {
        let updated = match self.accumulator.update() {
            // Nothing has changed. The graph is gone and the device is idle, so a second attempt may succeed.
            Err(Error::ResourceExhausted(_)) => {
                recover(&self.device)?;
                self.accumulator.update()
            }
            updated => updated,
        };
        let updated = updated.map_err(|error| unmask(error, &self.device))?;
        if updated.is_some() {
            self.updates += 1;
            if self.updates == 1 {
                self.warn_of_unreached();
            }
        }
        Ok(updated)
    }

    /// Returns the memory held by what is trained.
    pub(super) fn held(&self) -> Vec<Holding> {
        let (parameters, gradients) = self.accumulator.bytes();
        let held = [
            ("parameters", Some(parameters)),
            ("accumulated gradients", Some(gradients)),
            (
                "optimizer state",
                self.accumulator.optimizer().state_bytes(),
            ),
        ];
        let known = held.into_iter();
        known
            .filter_map(|(what, bytes)| Some(Holding::new(what, bytes?)))
            .collect()
    }

    /// Drops the window and restores the buffers. A failure to do so is logged: the caller already returns an error.
    pub(super) fn abandon(&mut self) {
        self.accumulator.reset();
        if let Err(restore) = self.buffers.restore_window() {
            log_unrestored(&restore);
        }
    }

    /// Rolls back a batch that ended before it was finished, and returns how many samples of earlier batches were lost with
    /// it: means cannot be taken apart, so if anything of the batch was added the whole window is dropped.
    pub(super) fn roll_back(&mut self, earlier: usize) -> usize {
        match self.accumulator.samples() == earlier {
            true => 0,
            false => {
                self.abandon();
                earlier
            }
        }
    }

    /// Runs `f` and restores the buffers afterwards, also if it panics.
    pub(super) fn without_traces<T>(&mut self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        struct Restore<'a>(&'a Buffers);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                if let Err(restore) = self.0.restore_micro_batch() {
                    log_unrestored(&restore);
                }
            }
        }
        self.buffers.save_micro_batch()?;
        let _restore = Restore(&self.buffers);
        f()
    }

    fn warn_of_unreached(&self) {
        for parameter in self.accumulator.unreached() {
            tracing::warn!(
                parameter = parameter.name,
                shape = ?parameter.var.shape(),
                "a parameter received no gradient in the first update: it is unused, or an operation without a backward pass cuts it off"
            );
        }
    }
}

fn log_unrestored(error: &Error) {
    tracing::error!(%error, "named buffers could not be restored and may contain traces of a failed micro-batch");
}

/// A batch whose micro-batches are accumulated. Dropping it before [`finish`](Self::finish), as a panic in the closure does,
/// rolls it back.
pub(super) struct Accumulation<'s, 'b, O: Commit, B: ?Sized, F> {
    core: &'s mut Core<O>,
    batch: &'b B,
    f: F,
    /// Samples that the window held before.
    earlier: usize,
    is_finished: bool,
}

impl<'s, 'b, O: Commit, B: ?Sized, F> Accumulation<'s, 'b, O, B, F> {
    pub(super) fn new(core: &'s mut Core<O>, batch: &'b B, f: F) -> Self {
        let earlier = core.accumulator.samples();
        Self {
            core,
            batch,
            f,
            earlier,
            is_finished: false,
        }
    }

    /// Keeps what was accumulated, or rolls it back after an error.
    pub(super) fn finish<T>(mut self, result: Result<T>) -> Result<T> {
        self.is_finished = true;
        let earlier = self.earlier;
        result.map_err(|error| match (self.core.roll_back(earlier), error) {
            (0, error) | (_, error @ Error::WindowLost(_)) => error,
            (samples, reason) => WindowLost::new(samples, reason).into(),
        })
    }
}

impl<O: Commit, B: ?Sized, F> Drop for Accumulation<'_, '_, O, B, F> {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        if let Err(restore) = self.core.buffers.restore_micro_batch() {
            log_unrestored(&restore);
        }
        let lost = self.core.roll_back(self.earlier);
        self.core.lost = (lost > 0).then_some(lost);
    }
}

impl<'b, O, B, F, L> Work for Accumulation<'_, 'b, O, B, F>
where
    O: Commit,
    B: Batch + ?Sized,
    F: FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<L>,
    L: Into<Loss>,
{
    fn micro_batch(&mut self, attempt: &Attempt<'_>) -> Result<(), Failure> {
        let failed = self.core.micro_batch(attempt, self.batch, &mut self.f);
        failed.map_err(|failure| match failure {
            // Earlier batches are not here to be processed again.
            Failure::Batch(error) if self.earlier > 0 => Failure::Final(error),
            failure => failure,
        })
    }

    fn held(&self) -> Vec<Holding> {
        self.core.held()
    }

    fn remedies(&self) -> Vec<Remedy> {
        self.core.accumulator.optimizer().remedies()
    }
}
