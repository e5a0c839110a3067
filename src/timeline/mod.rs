//! What happened when: a bounded record of a run, written as a page or a trace.

mod events;
mod handle;
#[cfg(feature = "nvtx")]
mod nvtx;
mod page;
mod recorder;
mod rows;
mod trace;

pub use handle::Timeline;
#[cfg(feature = "nvtx")]
pub use nvtx::NvtxRanges;
