//! Objects in S3, in Google Cloud Storage and behind HTTP: read at positions as files are, and written as checkpoints.
//!
//! All requests run on threads of this crate's own, and callers wait as they do for a disk: so they may call from any thread, also from one of an
//! async runtime.

mod cache;
mod client;
#[cfg(feature = "checkpoint")]
mod folder;
mod object;

pub use client::Remote;
#[cfg(feature = "checkpoint")]
pub(crate) use folder::RemoteFolder;
pub(crate) use object::Object;
