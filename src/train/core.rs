//! What both trainers share: one micro-batch, one update, and what is undone when either fails.

use candle_core::{Device, Tensor, Var};

use super::accumulator::{Contribution, GradientAccumulator};
use super::buffers::Buffers;
use super::loss::Loss;
use super::window::Window;
use crate::batch::{Attempt, Batch, Failure, MicroBatch, run_phase};
use crate::error::{Error, Holding, Phase, Result, UpdateInterrupted};
use crate::memory::{recover, unmask};
use crate::optim::Commit;

#[derive(Debug)]
pub(super) struct Core<O> {
    accumulator: GradientAccumulator,
    optimizer: O,
    /// The optimizer failed half-way: parameters and its state no longer belong together.
    is_interrupted: bool,
    buffers: Buffers,
    device: Device,
    /// Updates applied.
    pub(super) updates: u64,
}

impl<O: Commit> Core<O> {
    pub(super) fn new(vars: Vec<Var>, optimizer: O, buffers: &[Tensor]) -> Result<Self> {
        let accumulator = GradientAccumulator::new(vars)?;
        let device = accumulator.first_var().map(|var| var.device().clone());
        Ok(Self {
            accumulator,
            optimizer,
            is_interrupted: false,
            buffers: Buffers::new(buffers)?,
            device: device.unwrap_or(Device::Cpu),
            updates: 0,
        })
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn optimizer(&self) -> &O {
        &self.optimizer
    }

    pub(super) fn optimizer_mut(&mut self) -> &mut O {
        &mut self.optimizer
    }

    pub(super) fn replace_optimizer(&mut self, optimizer: O) -> O {
        self.is_interrupted = false;
        std::mem::replace(&mut self.optimizer, optimizer)
    }

    /// Samples in the present window.
    pub(super) fn samples(&self) -> usize {
        self.accumulator.samples()
    }

    pub(super) fn set_buffers(&mut self, buffers: &[Tensor]) -> Result<()> {
        self.buffers = Buffers::new(buffers)?;
        self.buffers.save_step()
    }

    pub(super) fn into_optimizer(self) -> O {
        self.optimizer
    }

    pub(super) fn unreached(&self) -> Vec<Var> {
        self.accumulator.unreached()
    }

    /// Keeps what the named buffers hold, for [`restore_buffers`](Self::restore_buffers).
    pub(super) fn save_buffers(&self) -> Result<()> {
        self.buffers.save_step()
    }

    pub(super) fn restore_buffers(&self) -> Result<()> {
        self.buffers.restore_step()
    }

    /// Begins an empty window, unless an interrupted update forbids any other.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.refuse_if_interrupted()?;
        self.accumulator.reset();
        self.buffers.save_step()
    }

    pub(super) fn refuse_if_interrupted(&self) -> Result<()> {
        match self.is_interrupted {
            true => Err(UpdateInterrupted { reason: None }.into()),
            false => Ok(()),
        }
    }

    /// Computes one micro-batch and adds its gradients to the window, or leaves everything as it was.
    pub(super) fn micro_batch<'b, B, L>(
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
        // A `WindowLost` from within the closure is some other accumulator's and says nothing about this one.
        let failure = match self.contribution(attempt, batch, f) {
            Err(error) => Failure::MicroBatch(error.holding(|| self.held())),
            Ok(contribution) => match attempt.phase(Phase::Accumulate, || {
                self.accumulator.accumulate(contribution)
            }) {
                Ok(()) => return Ok(()),
                Err(error @ Error::WindowLost(_)) => Failure::Everything(error),
                Err(error) => Failure::MicroBatch(error.holding(|| self.held())),
            },
        };
        let restored = match failure {
            Failure::Everything(_) => self.buffers.restore_step(),
            _ => self.buffers.restore_micro_batch(),
        };
        match restored {
            Ok(()) => Err(failure),
            Err(restore) => {
                report_unrestored(&restore);
                Err(Failure::Final(match failure.into_error() {
                    // With the device lost, what the window held is the least that is.
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
        let slice = attempt.phase(Phase::Transfer, || {
            run_phase(Phase::Transfer, || batch.slice(samples))
        })?;
        let loss = attempt.phase(Phase::Forward, || {
            run_phase(Phase::Forward, || f(slice, &attempt.micro))
        })?;
        let loss: Loss = loss.into();
        // The backward pass takes more than the forward pass left, so this is the moment to stop.
        attempt.end_forward()?;
        let scale = |loss: &Tensor| self.optimizer.scale_loss(loss);
        let contribution = attempt.phase(Phase::Backward, || {
            self.accumulator.differentiate(loss, size, scale)
        })?;
        if size == 1 {
            // A larger micro-batch that went over a soft limit is kept and the next one is smaller; here none can be.
            attempt
                .check()
                .map_err(|error| error.in_phase(Phase::Backward))?;
        }
        Ok(contribution)
    }

    /// Applies the window's update; `None` where nothing in it weighed anything.
    pub(super) fn commit(&mut self) -> Result<Option<Window>> {
        let flushed = match self.accumulator.flush(&mut self.optimizer) {
            // The window is untouched. The graph is gone and the device at rest, so once more may do.
            Err(Error::ResourceExhausted(_)) => {
                recover(&self.device)?;
                self.accumulator.flush(&mut self.optimizer)
            }
            flushed => flushed,
        };
        let flushed = flushed.map_err(|error| unmask(error, &self.device).holding(|| self.held()));
        match &flushed {
            Ok(Some(_)) => {
                self.updates += 1;
                if self.updates == 1 {
                    self.warn_of_unreached();
                }
            }
            Ok(None) => {}
            // The window is emptied when the optimizer may have moved something, and only then.
            Err(_) => self.is_interrupted = self.accumulator.samples() == 0,
        }
        flushed
    }

    /// What of the memory is the model's own.
    fn held(&self) -> Vec<Holding> {
        let (parameters, gradients) = self.accumulator.bytes();
        let known = [
            ("parameters", Some(parameters)),
            ("accumulated gradients", Some(gradients)),
            ("optimizer state", self.optimizer.state_bytes()),
        ];
        let known = known.into_iter();
        known
            .filter_map(|(what, bytes)| Some(Holding::new(what, bytes?)))
            .collect()
    }

    /// Leaves no trace of the window. That it cannot is told to `tracing`: the caller has the error that led here to return.
    pub(super) fn abandon(&mut self) {
        self.accumulator.reset();
        if let Err(restore) = self.buffers.restore_step() {
            report_unrestored(&restore);
        }
    }

    fn warn_of_unreached(&self) {
        for var in self.unreached() {
            tracing::warn!(
                shape = ?var.shape(),
                id = ?var.id(),
                "a Var received no gradient in the first update: it is unused, or cut off by an operation without a backward pass"
            );
        }
    }
}

fn report_unrestored(error: &Error) {
    tracing::error!(%error, "named buffers could not be restored and may hold traces of a failed micro-batch");
}
