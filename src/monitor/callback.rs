use std::panic::{AssertUnwindSafe, catch_unwind};

/// A closure or sink of the user's. When it panics it is dropped and not called again, and the monitor goes on.
#[derive(Debug)]
pub(super) struct Callback<F: ?Sized>(Option<Box<F>>);

impl<F: ?Sized> Callback<F> {
    pub(super) fn new(f: Box<F>) -> Self {
        Self(Some(f))
    }

    pub(super) fn is_alive(&self) -> bool {
        self.0.is_some()
    }

    /// The result of `call`, or `None` if the callback panics now or panicked before.
    pub(super) fn call<R>(&mut self, call: impl FnOnce(&mut F) -> R) -> Option<R> {
        let f = self.0.as_deref_mut()?;
        // Unwind safety: after a panic nothing but its destructor sees the callback's state.
        let returned = catch_unwind(AssertUnwindSafe(|| call(f))).ok();
        if returned.is_none() {
            tracing::error!("a callback or sink of the monitor panicked and is not called again");
            let dropped = self.0.take();
            let _ = catch_unwind(AssertUnwindSafe(|| drop(dropped)));
        }
        returned
    }
}
