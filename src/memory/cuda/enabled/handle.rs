use std::fmt;

/// The address of something that belongs to the driver or to NCCL, such as a stream. To hold it or to send it to another thread reads nothing.
/// The calls that are given it are `unsafe`, and each says why it is sound.
pub(crate) struct Handle<T>(pub(crate) *mut T);

// SAFETY: an address may be known to any thread; nothing behind it is accessed without `unsafe`.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Pointer::fmt(&self.0, f)
    }
}
