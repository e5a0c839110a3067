use std::fmt::Display;

use crate::batch::{EventKind, Observer, TrainingEvent};
use crate::error::Phase;

/// Shows batches and their phases as [NVTX](https://github.com/NVIDIA/NVTX) ranges, so that Nsight Systems groups the kernels of
/// each forward pass, backward pass and update. Retries, changes of size and exhaustions are marks.
///
/// A batch is a range such as `training 12`; each phase of a micro-batch is a range such as `forward` within it. All are in the
/// default domain, on the thread that works. Without a profiler a range costs formatting its name. The feature `nvtx` compiles
/// NVIDIA's headers and needs a C compiler.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::batch::{BatchProcessor, Fixed};
/// use candle_headroom::timeline::NvtxRanges;
///
/// let x = Tensor::arange(0f32, 10., &Device::Cpu)?; // (10,)
/// let mut processor = BatchProcessor::builder(Fixed::new(4)?).observer(NvtxRanges::new()).build();
/// processor.process(&x, |_, _| Ok(()))?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct NvtxRanges;

impl NvtxRanges {
    /// An observer for a trainer or a processor.
    pub fn new() -> Self {
        Self
    }
}

impl Observer for NvtxRanges {
    fn observe(&self, event: &TrainingEvent<'_>) {
        match event.kind {
            EventKind::BatchBegan { .. } => {
                ::nvtx::range_push!("{} {}", event.task, event.step);
            }
            EventKind::PhaseBegan(phase) => {
                ::nvtx::range_push!("{}", phase);
            }
            // Reported once it is over, within the backward pass.
            EventKind::PhaseEnded {
                phase: Phase::Recompute,
                ..
            } => {}
            EventKind::PhaseEnded { .. }
            | EventKind::BatchEnded { .. }
            | EventKind::BatchFailed(_) => {
                ::nvtx::range_pop!();
            }
            EventKind::Exhausted(exhausted) => mark(exhausted),
            EventKind::Happened(event) => mark(event),
            EventKind::MicroBatchEnded { .. } => {}
        }
    }
}

fn mark(event: &dyn Display) {
    // C ends a text at its first zero, and a driver's message may contain one.
    ::nvtx::mark!("{}", event.to_string().replace('\0', ""));
}
