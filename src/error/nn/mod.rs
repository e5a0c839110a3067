//! What errors need of `nn`, which knows nothing of this crate's.

#[cfg(not(feature = "nn"))]
mod disabled;
#[cfg(feature = "nn")]
mod enabled;

#[cfg(not(feature = "nn"))]
pub(super) use disabled::{by_module, is_second_run, shown, unwrap};
#[cfg(feature = "nn")]
pub(super) use enabled::{by_module, is_second_run, shown, unwrap};
