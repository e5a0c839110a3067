//! What happened when: a bounded record of a run, written as a page or a trace.

mod events;
mod exchanges;
mod gathered;
mod handle;
#[cfg(feature = "layers")]
mod layers;
#[cfg(feature = "nvtx")]
mod nvtx;
mod page;
mod rank_times;
mod recorder;
mod rows;
mod thinned;
mod trace;

pub use handle::Timeline;
#[cfg(feature = "nvtx")]
pub use nvtx::NvtxRanges;
pub use rank_times::{RankTime, RankTimes};
