use std::fmt;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use bytesize::ByteSize;

use super::document;
use super::history::History;
use super::recording::Recorded;
use crate::error::{OutputError, Result};
use crate::replace::replace;

/// What a [`SnapshotRecorder`](super::SnapshotRecorder) recorded, to be opened in
/// [PyTorch's memory viewer](https://docs.pytorch.org/memory_viz).
///
/// The file is a pickle in the form of `torch.cuda.memory._snapshot()`, for device 0. It holds
/// - each allocation and release, with frames: the spans that the thread was in, the innermost first, the phase of the step,
///   and the thread;
/// - an `oom` event where a request went over the limit of [`DeviceMemory::host`](crate::DeviceMemory::host) or was refused;
/// - the blocks that were live at the end. What was allocated before, or is smaller than
///   [`min_bytes`](super::SnapshotRecorderBuilder::min_bytes), is one block, so that the viewer's total is the process's;
/// - the phase as the category of an allocation, by which the viewer colours it.
///
/// The system's allocator does not report its segments. Those of the file are the ranges of addresses in which blocks lay.
pub struct Snapshot {
    history: History,
    dropped: u64,
    min_bytes: ByteSize,
}

impl Snapshot {
    pub(super) fn new(recorded: Recorded, min_bytes: ByteSize) -> Self {
        Self {
            dropped: recorded.dropped,
            history: History::of(recorded),
            min_bytes,
        }
    }

    /// Number of events: blocks allocated, blocks freed, and requests over the limit.
    pub fn len(&self) -> usize {
        self.history.events.len()
    }

    /// Whether it has no event.
    pub fn is_empty(&self) -> bool {
        self.history.events.is_empty()
    }

    /// Number of events that were not kept, because there were more than the recorder's capacity. They are the oldest.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Writes the snapshot as a pickle.
    ///
    /// # Errors
    /// [`OutputError`] if `to` fails.
    pub fn write(&self, to: &mut impl Write) -> Result<()> {
        let written = self.write_to(to);
        written.map_err(|error| OutputError::of("a memory snapshot", &error).into())
    }

    /// Writes the snapshot to a file, which is replaced as a whole or not at all. PyTorch's name for it is
    /// `memory_snapshot.pickle`.
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let saved = replace(path, |file| self.write_to(file));
        Ok(saved.map_err(|error| OutputError::at(path, &error))?)
    }

    fn write_to(&self, to: &mut impl Write) -> io::Result<()> {
        let mut to = BufWriter::with_capacity(1 << 16, to);
        document::write(&self.history, self.min_bytes, &mut to)?;
        to.flush()
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("len", &self.len())
            .field("dropped", &self.dropped)
            .finish_non_exhaustive()
    }
}
