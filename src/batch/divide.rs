use std::fmt::Debug;

use super::division::Division;
use super::place::Place;
use super::position::Position;
use crate::error::Result;

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
    fn revise(&self, position: &mut Position);
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
