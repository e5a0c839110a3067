//! Makes memory run out at a chosen point, for your own tests; behind the feature `testing`.
//!
//! Every phase of every micro-batch of a trainer or of [`process_batches`](crate::process_batches) is a point that can fail, and so is every
//! [`probe`] in a model, once in the forward and once in the backward pass. Faults are armed for this thread until their guard is dropped.
//! [`FileFaults`] does the same to the files of a checkpoint or a timeline.
//!
//! `DryRun` is something else: it asks in a test whether work fits onto a GPU that is not there.
//!
//! A point that fails does so before its work begins, as an allocation does that the driver refuses. Points are counted in the order in
//! which they are passed, so on one thread the same code passes the same points in each run: count them with `Faults::at(usize::MAX)`, then
//! try each. Without the feature there are no points.
//!
//! ```
//! # #[cfg(feature = "testing")] {
//! use candle_core::{Device, Tensor};
//! use candle_headroom::error::Phase;
//! use candle_headroom::testing::Faults;
//! use candle_headroom::process_batches;
//!
//! let x = Tensor::arange(0f32, 8., &Device::Cpu)?;
//! let armed = Faults::in_phase(Phase::Forward, 1).arm(); // the second chunk
//! let sums = process_batches(&x, 4, |chunk| chunk.sum_all()?.to_scalar::<f32>())?;
//! assert_eq!(armed.fired(), 1);
//! assert_eq!(sums.iter().sum::<f32>(), 28.); // each sample once
//! # }
//! # Ok::<(), candle_headroom::Error>(())
//! ```

#[cfg(all(feature = "testing", unix))]
mod dry_run;
#[cfg(feature = "testing")]
mod enabled;
#[cfg(all(feature = "distributed", feature = "testing"))]
mod engine;
#[cfg(feature = "testing")]
mod files;

#[cfg(all(feature = "testing", unix))]
pub use dry_run::{DryRun, Peak};
#[cfg(feature = "testing")]
pub(crate) use enabled::inject;
#[cfg(all(feature = "distributed", feature = "testing"))]
pub(crate) use enabled::inject_after_exchange;
#[cfg(feature = "testing")]
pub use enabled::{ArmedFaults, Faults, illegal_address, out_of_memory, probe};
#[cfg(all(feature = "distributed", feature = "testing"))]
pub use engine::{collectives, fan_out, watch};
#[cfg(feature = "testing")]
pub(crate) use files::inject_file;
#[cfg(feature = "testing")]
pub use files::{ArmedFileFaults, FileFaults};

pub use crate::files::FileOperation;

/// Without the feature no point fails.
#[cfg(not(feature = "testing"))]
#[inline]
pub(crate) fn inject(_: crate::error::Phase) -> candle_core::Result<()> {
    Ok(())
}

/// Without the feature no exchange fails.
#[cfg(all(feature = "distributed", not(feature = "testing")))]
#[inline]
pub(crate) fn inject_after_exchange() -> candle_core::Result<()> {
    Ok(())
}

/// Without the feature no operation fails.
#[cfg(not(feature = "testing"))]
#[inline]
pub(crate) fn inject_file(_: FileOperation, _: &std::path::Path) -> std::io::Result<()> {
    Ok(())
}
