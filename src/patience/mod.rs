//! Calls that may never return, such as those into a driver in trouble.
//!
//! Nothing can end such a call from outside: [`Task`] leaves it behind in its thread. [`load`] loads a library only after a child process
//! has, because one that hangs in its initializers holds the loader's lock, without which no thread of the process can start.

mod call;
#[cfg(target_os = "linux")]
mod child;
mod library;
#[cfg(not(target_os = "linux"))]
mod no_child;
mod task;

#[cfg(target_os = "linux")]
use child::rehearse;
#[cfg(not(target_os = "linux"))]
use no_child::rehearse;

pub(crate) use call::{Call, LoadError};
pub(crate) use library::load;
pub(crate) use task::{Task, Unfinished, within};
