use std::ffi::{CStr, c_void};
use std::io;

use parking_lot::Mutex;

/// A function that the child process calls after it has loaded the library.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) name: &'static CStr,
    /// Calls the function at this address.
    pub(crate) make: unsafe fn(*mut c_void),
}

/// How a child process failed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// In the call of this name, or while the library was loaded.
    Hung(Option<&'static CStr>),
    /// Likewise, with the way in which the process ended.
    Crashed(Option<&'static CStr>, String),
    NotStarted(io::Error),
}

/// Held while this crate loads a library or forks, because a child that is forked in the middle of a `dlopen` could fail for that alone.
pub(super) static LOADER: Mutex<()> = Mutex::new(());
