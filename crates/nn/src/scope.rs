//! Between the layers on a thread and whoever runs the model: the memory around a region, and what became of its second runs.
//!
//! The trainers of candle-headroom use it; write a [`Surroundings`] for a trainer of your own. Everything is of the thread that calls
//! it, lasts for one call, and is as before after a panic. With surroundings, values and gradients are the same as without, within
//! rounding, unless they refuse a second run.

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
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
///
/// use candle_headroom_nn::scope::Guard;
///
/// struct Ends(Rc<Cell<bool>>);
///
/// impl Drop for Ends {
///     fn drop(&mut self) {
///         self.0.set(true);
///     }
/// }
///
/// let ended = Rc::new(Cell::new(false));
/// let guard: Guard = Box::new(Ends(ended.clone()));
/// assert!(!ended.get());
/// drop(guard);
/// assert!(ended.get());
/// ```
pub type Guard = Box<dyn Any>;

/// The memory around the layers, and an observer of the second runs of [`recompute`](crate::recompute()) regions.
///
/// Set by [`within`]. Without it, memory is not measured and nobody is notified. Results differ by rounding at most:
/// [`linear_cross_entropy`](crate::loss::linear_cross_entropy()) chooses the size of its chunks by [`room`](Self::room).
///
/// Every method has a default that knows nothing and does nothing, so implement those that you need.
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
/// use std::time::Instant;
///
/// use candle_core::{DType, Device, Var};
/// use candle_headroom_nn::recompute;
/// use candle_headroom_nn::scope::{Surroundings, within};
///
/// /// Counts the regions that ran again.
/// #[derive(Default)]
/// struct Counts(Cell<usize>);
///
/// impl Surroundings for Counts {
///     fn ran_again(&self, _began: Instant, _succeeded: bool) {
///         self.0.set(self.0.get() + 1);
///     }
/// }
///
/// let counts = Rc::new(Counts::default());
/// let x = Var::ones(3, DType::F32, &Device::Cpu)?;
/// let loss = recompute(x.as_tensor(), |x| x.exp())?.sum_all()?;
/// within(counts.clone(), || loss.backward())?;
/// assert_eq!(counts.0.get(), 1);
/// # Ok::<(), candle_core::Error>(())
/// ```
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

    /// Returns a number that no other work has. [`walks_back_last`](Self::walks_back_last) speaks of the regions of this work.
    fn work(&self) -> u64 {
        0
    }

    /// Returns whether the graph of this work is walked back for the last time now. Its regions then free what they keep as soon as they do
    /// not need it, and fail in a later backward pass.
    fn walks_back_last(&self) -> bool {
        false
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
///
/// ```
/// use std::rc::Rc;
///
/// use candle_core::{DType, Device, Error, Result, Var};
/// use candle_headroom_nn::scope::{Guard, Surroundings, within};
/// use candle_headroom_nn::{SecondRun, recompute};
///
/// struct Refuses;
///
/// impl Surroundings for Refuses {
///     fn begins_again(&self) -> Result<Guard> {
///         Err(Error::Msg("no memory for it".to_owned()))
///     }
/// }
///
/// let x = Var::ones(3, DType::F32, &Device::Cpu)?;
/// let loss = recompute(x.as_tensor(), |x| x.exp())?.sum_all()?;
/// let error = within(Rc::new(Refuses), || loss.backward()).unwrap_err();
/// assert!(SecondRun::of(&error).is_some());
/// assert_eq!(error.to_string(), "no memory for it");
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn within<T>(surroundings: Rc<dyn Surroundings>, work: impl FnOnce() -> T) -> T {
    let mut outer = CURRENT.replace(Some(surroundings));
    let _restored = OnDrop(|| CURRENT.set(outer.take()));
    work()
}

/// The surroundings of this thread.
pub(crate) fn current() -> Option<Rc<dyn Surroundings>> {
    CURRENT.with_borrow(Clone::clone)
}
