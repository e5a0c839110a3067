use super::core::Core;
use super::loss::Loss;
use crate::batch::{Attempt, Batch, Failure, MicroBatch, Work};
use crate::error::{Error, Holding, Phase, Remedy, Result, WindowLost};
use crate::optim::Commit;

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
        result.map_err(|error| match self.roll_back() {
            0 => error,
            samples => WindowLost::new(samples, error).into(),
        })
    }

    /// Returns how many samples of earlier batches were lost: means cannot be taken apart, so if anything of this batch was
    /// added the whole window is dropped.
    fn roll_back(&mut self) -> usize {
        match self.core.accumulator.samples() == self.earlier {
            true => 0,
            false => {
                self.core.abandon();
                self.earlier
            }
        }
    }
}

impl<O: Commit, B: ?Sized, F> Drop for Accumulation<'_, '_, O, B, F> {
    fn drop(&mut self) {
        if !self.is_finished {
            let lost = self.roll_back();
            self.core.lost = (lost > 0).then_some(lost);
        }
    }
}

impl<'b, O, B, F, L> Work<()> for Accumulation<'_, 'b, O, B, F>
where
    O: Commit,
    B: Batch + ?Sized,
    F: FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<L>,
    L: Into<Loss>,
{
    fn micro_batch(&mut self, attempt: &Attempt<'_>) -> Result<(), Failure> {
        let size = attempt.micro.samples.len();
        let traces = self.core.at_micro_batch.guard()?;
        let loss = attempt.forward(self.batch, &mut self.f)?.into();
        // The backward pass needs more memory than the forward pass left, so this is the moment to stop.
        attempt.check_forward()?;
        let accumulator = &mut self.core.accumulator;
        let contribution =
            attempt.observe(Phase::Backward, || accumulator.differentiate(loss, size))?;
        if size == 1 {
            // A larger micro-batch that went over a soft limit is kept and the next one is smaller; this one cannot be.
            attempt.memory.check(Phase::Backward)?;
        }
        match attempt.observe(Phase::Accumulate, || accumulator.accumulate(contribution)) {
            Ok(()) => {
                traces.keep();
                Ok(())
            }
            Err(Error::WindowLost(lost)) => {
                drop(traces);
                self.core.at_window.restore();
                Err(match self.earlier {
                    0 => Failure::Batch(lost.reason),
                    // Earlier batches are not here to be processed again.
                    _ => Failure::Final(lost.reason),
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    fn held(&self) -> (Vec<Holding>, Vec<Remedy>) {
        self.core.held()
    }
}
