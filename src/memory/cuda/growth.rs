use std::fmt;

/// When the pool of a GPU takes memory from the driver, and when it returns it.
///
/// ```
/// use candle_headroom::memory::Growth;
///
/// assert_eq!(Growth::default(), Growth::OnDemand);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Growth {
    /// Takes memory when it is needed and keeps it for reuse. TensorFlow calls it memory growth.
    #[default]
    OnDemand,
    /// Takes the whole limit when the memory is opened, so that no other process can: TensorFlow's default. Without a limit it takes what
    /// [`Limit::Auto`](crate::memory::Limit::Auto) would allow. Only [`trim`](crate::memory::DeviceMemory::trim) returns it. How far the limit can
    /// be lowered depends on the driver: memory taken in one piece may stay as long as one tensor lies in it.
    Preallocate,
    /// Returns unused memory at every synchronization, as CUDA does by default. Other processes get it soon; a loop that synchronizes pays for
    /// taking it again each time.
    ReturnAtSync,
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::OnDemand => "on demand",
            Self::Preallocate => "preallocated",
            Self::ReturnAtSync => "returned at each synchronization",
        })
    }
}
