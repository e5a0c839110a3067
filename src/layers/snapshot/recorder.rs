use bytesize::ByteSize;

use super::handle::Snapshot;
use super::recording::Recording;
use crate::error::Result;

/// Records each allocation and release of the host's memory, for [PyTorch's memory viewer](https://docs.pytorch.org/memory_viz).
///
/// The program needs [`TrackingAllocator`](crate::TrackingAllocator). Each event has address, size, time and thread. While a
/// [`LayerMemory`](crate::layers::LayerMemory) lives, it also has the phase of the trainer's step and, if that is installed, the
/// spans that the thread was in. All threads of the process are recorded, from [`start`](SnapshotRecorderBuilder::start) on.
///
/// ```standalone_crate
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::layers::SnapshotRecorder;
/// use candle_headroom::TrackingAllocator;
///
/// #[global_allocator]
/// static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let recorder = SnapshotRecorder::builder().start()?;
///     let x = Tensor::zeros((256, 1024), DType::F32, &Device::Cpu)?; // 1 MiB
///     drop(x);
///     let snapshot = recorder.stop();
///     assert!(snapshot.len() >= 2 && snapshot.dropped() == 0);
///     # let folder = tempfile::tempdir()?;
///     # let path = folder.path().join("memory_snapshot.pickle");
///     # let _ = stringify!(
///     snapshot.save("memory_snapshot.pickle")?;
///     # );
///     # snapshot.save(&path)?;
///     # assert!(path.metadata()?.len() > 100);
///     Ok(())
/// }
/// ```
///
/// # Cost
/// Memory for the events is reserved at the start, 40 bytes for each: 10 MiB by default, which counts to the limit of the host's
/// memory. Recording takes no lock and does not allocate. Without a recorder, each request takes one relaxed load more.
///
/// # Limits
/// - Memory of a GPU is not recorded: candle's CUDA backend takes it from the driver, which reports no single allocation.
/// - Only the latest events are kept, as many as [`capacity`](SnapshotRecorderBuilder::capacity) says.
/// - A process has one recorder at a time. Dropping it ends the record.
#[derive(Debug)]
#[must_use = "dropping it ends the record"]
pub struct SnapshotRecorder {
    recording: Recording,
    min_bytes: ByteSize,
}

/// Options of a [`SnapshotRecorder`]; from [`SnapshotRecorder::builder`].
#[derive(Debug, Clone, Copy)]
#[must_use = "call `start()`"]
pub struct SnapshotRecorderBuilder {
    min_bytes: ByteSize,
    capacity: usize,
}

impl SnapshotRecorder {
    /// Options for a recorder; by default of blocks of at least 1 KiB, with the latest 262,144 events kept.
    pub fn builder() -> SnapshotRecorderBuilder {
        SnapshotRecorderBuilder {
            min_bytes: ByteSize::kib(1),
            capacity: 1 << 18,
        }
    }

    /// Ends the record and returns it.
    pub fn stop(self) -> Snapshot {
        Snapshot::new(self.recording.finish(), self.min_bytes)
    }
}

impl SnapshotRecorderBuilder {
    /// Sets the size from which blocks are recorded. Default: 1 KiB. Smaller blocks are counted together, as one block of the
    /// snapshot.
    pub fn min_bytes(mut self, size: ByteSize) -> Self {
        self.min_bytes = size;
        self
    }

    /// Sets how many events are kept, the latest. Default: 262,144. Each takes 40 bytes, reserved at the start. A block that is
    /// allocated and freed takes two.
    pub fn capacity(mut self, events: usize) -> Self {
        self.capacity = events;
        self
    }

    /// Starts to record.
    ///
    /// # Errors
    /// [`MemoryError`](crate::error::MemoryError): the program has no [`TrackingAllocator`](crate::TrackingAllocator), another
    /// recorder is running, or the capacity is 0 or does not fit in memory.
    pub fn start(self) -> Result<SnapshotRecorder> {
        let least = usize::try_from(self.min_bytes.as_u64());
        // No block is as large as `usize::MAX`, which stands for no watcher.
        let least = least.unwrap_or(usize::MAX).clamp(1, usize::MAX - 1);
        Ok(SnapshotRecorder {
            recording: Recording::begin(self.capacity, least)?,
            min_bytes: self.min_bytes,
        })
    }
}
