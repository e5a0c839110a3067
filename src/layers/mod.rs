//! Which layers hold the memory.

#[cfg(feature = "layers")]
#[allow(dead_code)]
mod path;
#[cfg(feature = "layers")]
#[allow(unused_imports)]
pub(crate) use path::{PathId, current};
#[cfg(feature = "layers")]
mod snapshot;
#[cfg(feature = "layers")]
pub use snapshot::{Snapshot, SnapshotRecorder, SnapshotRecorderBuilder};
