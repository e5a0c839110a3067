use crate::data::Dataset;
use crate::error::BoxedError;

/// What a loader reads: a [`Dataset`], or a [`Stream`].
pub trait Source: sealed::Sealed {
    /// One sample.
    type Sample: Send;
}

/// Samples that can only be read one after the other, such as those of a network or of a compressed archive; for
/// [`Loader::builder`](super::Loader::builder).
///
/// The function begins an epoch, counted from 0. One worker reads, and a resumed loader reads the epoch's samples again up to its
/// position, which it logs. The samples of an epoch must always come in the same order for that, with an error in the place of one that cannot
/// be read: a position counts items taken, so that other samples stay in their batches.
///
/// A stream has no name and no length, so neither a resumed run nor other ranks notice that it reads something else: name the loader by its data,
/// as in `.name("wiki-2024")`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::data::{Loader, Stream};
/// use candle_headroom::error::BoxedError;
///
/// let lines = Stream(|_epoch| Ok("1 2 3 4 5".split(' ').map(|number| Ok(number.parse::<f32>()?))));
/// let collate = |numbers: Vec<f32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(numbers, &Device::Cpu)?) };
/// let mut loader = Loader::builder(lines, collate).batch(2).build()?;
/// let mut sizes = Vec::new();
/// for batch in &mut loader {
///     sizes.push(batch?.elem_count());
/// }
/// assert_eq!(sizes, [2, 2, 1]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Stream<F>(pub F);

mod sealed {
    pub trait Sealed {}
}

impl<D: Dataset> sealed::Sealed for D {}
impl<D: Dataset> Source for D {
    type Sample = D::Sample;
}

impl<F> sealed::Sealed for Stream<F> {}
impl<S, I, F> Source for Stream<F>
where
    S: Send,
    I: Iterator<Item = Result<S, BoxedError>>,
    F: Fn(u64) -> Result<I, BoxedError>,
{
    type Sample = S;
}
