//! Between the layers on a thread and whoever runs the model: the memory around a region, and what became of its second runs.
//!
//! The trainers of candle-headroom use it. Everything is of the thread that calls it, lasts for one call, and is as before after a panic.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use candle_core::{Device, Result};

pub use crate::recompute::{Held, Watched, watch};
pub use crate::seed::frozen;

thread_local! {
    static CURRENT: RefCell<Option<Rc<dyn Surroundings>>> = const { RefCell::new(None) };
}

/// Lasts until it is dropped.
pub type Guard = Box<dyn Any>;

/// The memory around the layers, and an observer of the second runs of [`recompute`](crate::recompute()) regions.
///
/// Set by [`within`]. Without it nothing is known and nobody learns of anything; results are the same.
pub trait Surroundings {
    /// Returns the bytes in use of the memory that the work is measured against; `None` if they are not counted.
    fn in_use(&self) -> Option<u64> {
        None
    }

    /// Returns the bytes that may still be allocated on this device; `None` if they are not known.
    fn room(&self, device: &Device) -> Option<u64> {
        let _ = device;
        None
    }

    /// Returns a number for where the model is, which [`runs_again`](Self::runs_again) receives for a region that began here.
    fn place(&self) -> u64 {
        0
    }

    /// The outputs of the region that ran last are copied, until the guard is dropped.
    fn copies(&self) -> Guard {
        Box::new(())
    }

    /// The second run of a region and its backward pass begin, and end when the guard is dropped. Those of the regions within lie
    /// between.
    ///
    /// # Errors
    /// Any error, with which the region fails.
    fn begins_again(&self) -> Result<Guard> {
        Ok(Box::new(()))
    }

    /// The closure of a region runs again that began at this place, until the guard is dropped.
    fn runs_again(&self, place: u64) -> Guard {
        let _ = place;
        Box::new(())
    }

    /// The second run of a region and its backward pass have ended. Not called for regions within others.
    fn ran_again(&self, began: Instant, succeeded: bool) {
        let _ = (began, succeeded);
    }
}

/// Does something when it is dropped, also by a panic: sets a value of the thread back.
pub(crate) struct OnDrop<F: FnMut()>(pub F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Runs `work` in these surroundings.
pub fn within<T>(surroundings: Rc<dyn Surroundings>, work: impl FnOnce() -> T) -> T {
    let mut outer = CURRENT.replace(Some(surroundings));
    let _restored = OnDrop(|| CURRENT.set(outer.take()));
    work()
}

/// The surroundings of this thread.
pub(crate) fn current() -> Option<Rc<dyn Surroundings>> {
    CURRENT.with_borrow(Clone::clone)
}
