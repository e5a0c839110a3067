use std::ffi::{CStr, c_void};

use parking_lot::Mutex;

/// A function that the child process calls after it has loaded the library.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) name: &'static CStr,
    /// Calls the function at this address.
    pub(crate) make: unsafe fn(*mut c_void),
}

/// Why a library was not loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LoadError {
    /// There is no such library, or it is not one: the loader's message.
    #[error("{0}")]
    Absent(String),
    /// What does not return.
    #[error("{0} does not return")]
    Hangs(String),
    /// How a child process ended, or why there was none.
    #[error("{0}")]
    Crashes(String),
}

/// Held while this crate loads a library or forks, because a child that is forked in the middle of a `dlopen` could fail for that alone.
pub(super) static LOADER: Mutex<()> = Mutex::new(());
