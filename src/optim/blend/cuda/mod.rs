//! The same on the device, by kernels of this crate's own.

/// A strided source of more axes than this has to be made contiguous first.
pub(super) const MAX_RANK: usize = 8;

#[cfg(feature = "cuda")]
mod enabled;
#[cfg(feature = "cuda")]
pub(super) use enabled::{IS_BUILT, blend, scale};

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(not(feature = "cuda"))]
pub(super) use disabled::{IS_BUILT, blend, scale};
