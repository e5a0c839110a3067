use std::fmt::{self, Debug};

use serde::{Deserialize, Serialize};

use super::division::Division;
use crate::error::Result;

/// Where a batch comes in the order of a loader; places compare as the batches come. They are the same on all ranks.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Place(u64, u64, u64);

impl Place {
    /// The place of a batch of a loader: its epoch, its window in the epoch, and its place in the window.
    pub(crate) fn new((epoch, window, batch): (u64, usize, usize)) -> Self {
        Self(epoch, window as u64, batch as u64)
    }

    /// Returns it as bytes, to be sent to other ranks.
    pub fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        let numbers = [self.0, self.1, self.2].map(u64::to_le_bytes);
        for (to, from) in bytes.iter_mut().zip(numbers.as_flattened()) {
            *to = *from;
        }
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) returned.
    pub fn from_bytes(bytes: [u8; 24]) -> Self {
        let (numbers, _) = bytes.as_chunks();
        let mut numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
        let mut next = || numbers.next().unwrap_or_default();
        Self(next(), next(), next())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(epoch, window, batch) = self;
        write!(f, "batch {batch} of window {window} of epoch {epoch}")
    }
}

/// Divides the batches of one loader among the ranks, while the loader reads ahead.
///
/// The division of a batch is a function of its place, which must be the same on all ranks, or samples are lost or doubled. A batch that
/// was begun keeps its division, so a change begins at a place that no rank has begun: each rank [holds](Hold) its loader, and the
/// ranks exchange their next places and divide from the largest of them on.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::batch::{Division, Hold};
/// use candle_headroom::data::{Items, Loader};
/// use candle_headroom::error::BoxedError;
///
/// let loader = |rank| {
///     let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
///     Loader::builder(Items(Vec::from_iter(0..30)), collate).batch(6).rank(rank, 2).workers(0).build()
/// };
/// let mut ranks = [loader(0)?, loader(1)?]; // as a rule in two processes
/// for rank in &mut ranks {
///     assert_eq!(rank.next().unwrap()?.indices.len(), 3);
/// }
/// let holds = ranks.each_ref().map(|rank| Hold::new(rank.divide()));
/// let from = holds.each_ref().map(Hold::next).into_iter().max().unwrap_or_default();
/// for hold in holds {
///     hold.divide(from, &Division::weighted([2, 1])?)?;
/// }
/// let parts = ranks.map(|mut rank| rank.next().unwrap().unwrap().indices);
/// assert_eq!(parts, [vec![6, 7, 8, 9], vec![10, 11]]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub trait Divide: Debug + Send + Sync {
    /// Returns how the last batches will be divided, as it is known now.
    fn division(&self) -> Division;

    /// Keeps the loader from beginning further batches, and returns the place of the first that it has not begun. Each call needs one of
    /// [`go_on`](Self::go_on); a [`Hold`] sees to that.
    fn stop(&self) -> Place;

    /// Lets the loader begin batches again.
    fn go_on(&self);

    /// Divides the batches from this place on.
    ///
    /// # Errors
    /// [`DataError::Setting`](crate::error::DataError::Setting) for a division among another number of ranks, or if batches from
    /// this place on were begun. Nothing changes then.
    fn divide(&self, from: Place, division: &Division) -> Result<()>;

    /// Adds what was divided since to a position of the loader that an [`Origin`](super::Origin) named, so that a run which is resumed
    /// there divides alike.
    ///
    /// # Errors
    /// [`DataError::Position`](crate::error::DataError::Position) if it is not a position of a loader.
    fn revise(&self, position: &str) -> Result<String>;
}

/// A loader that begins no further batches until this is dropped. Batches that it has begun still come.
#[derive(Debug)]
#[must_use = "the loader goes on when it is dropped"]
pub struct Hold<'a> {
    divide: &'a dyn Divide,
    next: Place,
}

impl<'a> Hold<'a> {
    /// Stops a loader.
    pub fn new(divide: &'a dyn Divide) -> Self {
        let next = divide.stop();
        Self { divide, next }
    }

    /// Returns the place of the first batch that it has not begun.
    pub fn next(&self) -> Place {
        self.next
    }

    /// Divides the batches from this place on, which is the largest `next` of all ranks, and lets the loader go on.
    ///
    /// # Errors
    /// Those of [`Divide::divide`].
    pub fn divide(self, from: Place, division: &Division) -> Result<()> {
        self.divide.divide(from, division)
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.divide.go_on();
    }
}
