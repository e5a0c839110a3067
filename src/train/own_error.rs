use std::error::Error as StdError;
use std::fmt;

use crate::error::Error;

/// An error of a closure whose type need not implement [`StdError`], until it is returned: a [`Carried`] with its text stands in its place.
#[derive(Debug)]
pub(super) struct OwnError<E>(Option<E>);

impl<E: From<Error>> OwnError<E> {
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// Keeps an error, which is `shown` as one of the standard library's. An exhaustion or a device fault in it comes out as such.
    pub(super) fn carry(
        &mut self,
        error: E,
        shown: impl Fn(&E) -> &(dyn StdError + 'static),
    ) -> candle_core::Error {
        let found = shown(&error);
        let carried = Error::found_in(found, Carried(found.to_string()));
        self.0 = Some(error);
        carried.into()
    }

    /// Returns the error that was kept, if `error` stands in its place, or `error` converted.
    pub(super) fn give_back(self, error: Error) -> E {
        match (error.downcast::<Carried>(), self.0) {
            (Ok(_), Some(own)) => own,
            (Ok(carried), None) => Error::external(carried).into(),
            (Err(error), _) => error.into(),
        }
    }
}

#[derive(Debug)]
struct Carried(String);

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Carried {}
