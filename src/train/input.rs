use std::cell::RefCell;
use std::error::Error as StdError;
use std::ops::Range;

use candle_core::Result as CandleResult;

use super::loss::Loss;
use crate::batch::{Attempt, Batch, Extent, MicroBatch, Origin};
use crate::error::{BoxedError, Error, Result};

/// What a [step](super::AdaptiveTrainer::step) takes: a batch by reference, or the `Result` of a batch that a loader yields, by value.
///
/// An error in a `Result` is the step's own: nothing has changed then. In a [group](super::AdaptiveTrainerBuilder::group) the other ranks hear
/// of it, where a loop that leaves with `?` before the step would let them wait.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::{AdaptiveTrainer, Result, Sgd};
/// use candle_nn::{Module, VarBuilder, VarMap, linear};
///
/// let varmap = VarMap::new();
/// let model = linear(4, 1, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let mut trainer = AdaptiveTrainer::builder(Sgd::builder(&varmap).build()?).build()?;
///
/// let mut files = ["a", "b"].into_iter();
/// let batches = std::iter::from_fn(|| -> Option<Result<Tensor, std::io::Error>> {
///     let name = files.next()?;
///     Some(match name {
///         "a" => Ok(Tensor::ones((8, 4), DType::F32, &Device::Cpu).ok()?),
///         _ => Err(std::io::Error::other("`b` is damaged")),
///     })
/// });
/// let mut done = Vec::new();
/// for batch in batches {
///     done.push(trainer.step(batch, |x, _| model.forward(&x)?.sqr()?.mean_all()));
/// }
/// assert_eq!(done[0].as_ref().expect("a step").samples, 8);
/// assert_eq!(done[1].as_ref().unwrap_err().to_string(), "`b` is damaged");
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a batch by reference nor a `Result` of one",
    note = "pass `&batch`, where the batch is a tensor, a tuple of tensors or another `candle_headroom::Batch`",
    note = "or pass the item of a loader as it is, a `Result` of a batch that borrows nothing"
)]
pub trait StepInput {
    /// The batch.
    type Batch: Batch;

    /// The type of a run of samples, which the closure receives.
    type Slice<'a>;

    /// Returns the batch.
    ///
    /// # Errors
    /// That of the `Result`.
    fn into_batch(self) -> Result<Self::Batch>;

    /// Returns the samples of a batch in `range`.
    ///
    /// # Errors
    /// Those of [`Batch::slice`].
    fn slice(batch: &Self::Batch, range: Range<usize>) -> Result<Self::Slice<'_>>;
}

impl<'b, B: Batch + ?Sized> StepInput for &'b B {
    type Batch = &'b B;
    type Slice<'a> = B::Slice<'b>;

    fn into_batch(self) -> Result<&'b B> {
        Ok(self)
    }

    fn slice<'a>(batch: &'a &'b B, range: Range<usize>) -> Result<B::Slice<'b>> {
        (**batch).slice(range)
    }
}

// Without lifetimes in `B`: a closure that takes the slices of a batch that lives in the step could not be written otherwise.
impl<B: Batch + 'static, E: Into<BoxedError>> StepInput for Result<B, E> {
    type Batch = B;
    type Slice<'a> = B::Slice<'a>;

    fn into_batch(self) -> Result<B> {
        self.map_err(Error::external)
    }

    fn slice(batch: &B, range: Range<usize>) -> Result<B::Slice<'_>> {
        batch.slice(range)
    }
}

/// Runs the forward pass, and keeps what the closure of a step returns beside the loss.
pub(super) type Forward<'g> = dyn FnMut(&Attempt<'_>) -> Result<Loss> + 'g;

/// A batch with its closure. What does not depend on the types of these is compiled once.
pub(super) struct Given<'g> {
    pub(super) extent: Result<Extent>,
    pub(super) origins: Vec<Origin<'g>>,
    pub(super) forward: &'g mut Forward<'g>,
    /// Drops what was kept of all micro-batches but the first ones.
    pub(super) truncate: &'g dyn Fn(usize),
}

/// Calls `work` with a batch and its closure, or with the error in place of a batch. Also returns what the closure returned beside its losses,
/// for each finished micro-batch.
pub(super) fn with_given<I: StepInput, L: Into<Loss>, T, R>(
    item: I,
    mut f: impl FnMut(I::Slice<'_>, &MicroBatch) -> CandleResult<(L, T)>,
    work: impl FnOnce(Result<Given<'_>>) -> Result<R>,
) -> Result<(R, Vec<T>)> {
    let batch = match item.into_batch() {
        Ok(batch) => batch,
        Err(error) => return Ok((work(Err(error))?, Vec::new())),
    };
    let outputs = RefCell::new(Vec::new());
    let mut forward = |attempt: &Attempt<'_>| -> Result<Loss> {
        let (loss, output) = attempt.forward(|range| I::slice(&batch, range), &mut f)?;
        if !attempt.micro.is_check {
            outputs.borrow_mut().push(output);
        }
        Ok(loss.into())
    };
    let done = work(Ok(Given {
        extent: batch.extent(),
        origins: batch.origins(),
        forward: &mut forward,
        truncate: &|micro_batches| outputs.borrow_mut().truncate(micro_batches),
    }));
    Ok((done?, outputs.into_inner()))
}

/// An error of a closure whose type need not implement [`StdError`], until it is returned: a [`Carried`] with its text stands in its place.
#[derive(Debug)]
pub(super) struct OwnError<E>(pub(super) Option<E>);

impl<E: From<Error>> OwnError<E> {
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

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Carried(String);
