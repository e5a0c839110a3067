//! Finds an error of this crate inside one that displays it but does not return it from `source()`, such as a
//! `#[error(transparent)]` enum around a candle error with a backtrace.
//!
//! While [`render`] formats an error, the `Display` implementations of this crate's errors [`note`] a copy of themselves.

use std::any::Any;
use std::cell::Cell;
use std::fmt::{self, Write};

#[derive(Default)]
enum Noted {
    /// Nothing is being rendered on this thread.
    #[default]
    Closed,
    Nothing,
    Error(Box<dyn Any>),
}

thread_local! {
    static NOTED: Cell<Noted> = const { Cell::new(Noted::Closed) };
}

/// Part of the text of errors that never count as the error that they contain. It notes itself and writes nothing.
#[derive(Clone)]
pub(super) struct Final;

impl fmt::Display for Final {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        note(self);
        Ok(())
    }
}

/// Keeps a copy of `error` for the [`render`] in progress on this thread; the first and outermost one wins.
pub(super) fn note<T: Clone + 'static>(error: &T) {
    // A thread that ends has no notes any more.
    let _ = NOTED.try_with(|noted| {
        let next = match noted.take() {
            Noted::Nothing => Noted::Error(Box::new(error.clone())),
            other => other,
        };
        noted.set(next);
    });
}

/// The text of a value, and the first error of this crate that took part in it.
pub(super) fn render(value: &(impl fmt::Display + ?Sized)) -> (String, Option<Box<dyn Any>>) {
    /// Formatting runs the caller's code, which can unwind.
    struct Close;
    impl Drop for Close {
        fn drop(&mut self) {
            let _ = NOTED.try_with(Cell::take);
        }
    }
    let _close = Close;
    let _ = NOTED.try_with(|noted| noted.set(Noted::Nothing));
    let mut text = String::new();
    // An error of the formatter itself leaves the text that came before it.
    let _ = write!(text, "{value}");
    match NOTED.try_with(Cell::take) {
        Ok(Noted::Error(error)) => (text, Some(error)),
        _ => (text, None),
    }
}
