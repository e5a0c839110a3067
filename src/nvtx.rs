//! Phases as ranges for NVIDIA's profilers.

use std::fmt::Display;

use crate::batch::{Observer, TrainingEvent};

/// Shows batches and their phases as [NVTX](https://github.com/NVIDIA/NVTX) ranges, so that Nsight Systems puts the kernels of
/// a forward pass, a backward pass and an update under their names; retries, changes of size and exhaustions are marks.
///
/// A batch is a range like «training 12», with one like «forward» in it for each phase of each micro-batch. They lie in the
/// default domain, on the thread that works. Without a profiler each is a call that does nothing but write its name.
/// With the feature `nvtx`, which compiles NVIDIA's headers with a C compiler.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::{BatchProcessor, Fixed, NvtxRanges};
///
/// let x = Tensor::arange(0f32, 10., &Device::Cpu)?;
/// BatchProcessor::new(Fixed::new(4)?).observer(NvtxRanges::new()).process(&x, |_, _| Ok(()))?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct NvtxRanges;

impl NvtxRanges {
    /// To be given to a trainer's `observer`.
    pub fn new() -> Self {
        Self
    }
}

impl Observer for NvtxRanges {
    fn observe(&self, moment: &TrainingEvent<'_>) {
        match moment {
            TrainingEvent::BatchBegan { task, step, .. } => begin(&format_args!("{task} {step}")),
            TrainingEvent::PhaseBegan { phase, .. } => begin(phase),
            TrainingEvent::PhaseEnded { .. }
            | TrainingEvent::BatchEnded { .. }
            | TrainingEvent::BatchFailed { .. } => {
                ::nvtx::range_pop!();
            }
            TrainingEvent::Exhausted { exhausted, .. } => mark(exhausted),
            TrainingEvent::Happened { event, .. } => mark(event),
            TrainingEvent::MicroBatchEnded { .. } => {}
        }
    }
}

fn begin(name: &dyn Display) {
    ::nvtx::range_push!("{}", terminated(name));
}

fn mark(name: &dyn Display) {
    ::nvtx::mark!("{}", terminated(name));
}

/// A text that C can take: it ends at the first zero, and a driver's words may hold one.
fn terminated(name: &dyn Display) -> String {
    name.to_string().replace('\0', "")
}
