//! Records what the host's allocator does, for PyTorch's memory viewer.

mod document;
mod event;
mod frames;
mod handle;
mod history;
mod pickle;
mod recorder;
mod recording;
mod ring;
mod segments;

pub use handle::Snapshot;
pub use recorder::{SnapshotRecorder, SnapshotRecorderBuilder};
