use bytesize::ByteSize;

/// A limit on a device's memory that cannot be set, and that a program can do something about. Nothing has changed.
///
/// Other errors about memory are [`Invalid`](super::Invalid); [`Error::is_memory`](super::Error::is_memory) holds for both.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A limit on host memory without the tracking allocator.
    #[error(
        "only the tracking allocator can limit host memory: add these two lines to the program:\n    #[global_allocator]\n    static ALLOCATOR: candle_headroom::TrackingAllocator = candle_headroom::TrackingAllocator::system();"
    )]
    AllocatorNotInstalled,
    /// More than the limit is in use already.
    #[error("a limit of {} is below the {} in use already: raise it, or set it before building the model", ByteSize(*.limit), ByteSize(*.in_use))]
    #[non_exhaustive]
    BelowUse {
        /// The requested limit, in bytes.
        limit: u64,
        /// In use already, in bytes.
        in_use: u64,
    },
}
