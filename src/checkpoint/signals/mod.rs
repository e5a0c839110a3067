//! Waiting for signals between updates.

#[cfg(not(unix))]
mod disabled;
#[cfg(unix)]
mod enabled;

#[cfg(not(unix))]
pub(super) use disabled::Watch;
#[cfg(unix)]
pub(super) use enabled::Watch;
