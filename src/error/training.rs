//! What can go wrong in a training, with losses, saved state and other ranks, each error with the wrong value and the remedy.

/// The loss of samples together is not that of the same samples in parts, so an update would depend on the sizes of micro-batches. Nothing has
/// changed. Any other loss that cannot be used is [`Invalid`](super::Invalid); [`Error::is_loss`](super::Error::is_loss) holds for both.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_headroom::error::CutCause;
/// use candle_headroom::{AdaptiveTrainer, Error, Sgd};
///
/// let w = Var::new(&[1f32, 2.], &Device::Cpu)?;
/// let optimizer = Sgd::builder(vec![w.clone()]).build()?;
/// let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
/// let x = Tensor::new(&[[1f32, 2.], [3., 1.], [2., 2.]], &Device::Cpu)?;
/// let sum = trainer.check_cut(&x, |x, _| x.broadcast_mul(&w)?.sqr()?.sum_all());
/// let Err(Error::DependsOnCut(error)) = sum else { panic!("{sum:?}") };
/// assert_eq!(error.cause, CutCause::Sum);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "the loss depends on how the batch is cut: samples 0..{samples} together have the loss {whole}, cut at {cut_at} {cut}, and the gradients differ by {difference:.2e} of their size, where rounding explains {allowed:.2e}. {cause} If it is meant so, build the trainer with `.unchecked_cuts()`"
)]
#[non_exhaustive]
pub struct DependsOnCut {
    /// Number of samples that were compared, from the batch's first on.
    pub samples: usize,
    /// The first sample of the second part.
    pub cut_at: usize,
    /// The loss of all of them together.
    pub whole: f64,
    /// The loss of the two parts, combined by their weights.
    pub cut: f64,
    /// The norm of the difference of the gradients, divided by the gradients' norm.
    pub difference: f64,
    /// The largest such number that rounding explains.
    pub allowed: f64,
    /// What the gradients look like.
    pub cause: CutCause,
}

/// The likely cause of a [`DependsOnCut`]. Its `Display` names the remedy.
///
/// ```
/// use candle_headroom::error::CutCause;
///
/// let remedy = CutCause::Sum.to_string();
/// assert!(remedy.starts_with("The loss grows with the number of samples: return their mean"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CutCause {
    /// The loss is a sum, or a sum divided by a number for the whole batch, and counts as a mean.
    #[error(
        "The loss grows with the number of samples: return their mean, or `Loss::sum` with the number of terms."
    )]
    Sum,
    /// The loss is a mean over something that not every sample has as much of, such as the tokens that are kept.
    #[error(
        "The loss looks like a mean over something else than samples, such as the tokens that are kept: return `Loss::weighted_mean(mean, count)`, or `Loss::sum(sum, count)`."
    )]
    Weights,
    /// The samples that the closure receives affect each other's losses, or the closure uses values of other samples.
    #[error(
        "The loss of a sample depends on the samples beside it. Compute what belongs to the whole batch, such as normalized advantages, class weights or negatives, before `step`, and pass it in with the batch; cut captured tensors by `micro.samples`; and name the running statistics of BatchNorm, which depends on the cut in every framework, with `.buffers(…)`."
    )]
    Neighbours,
}

/// Saved state does not fit the optimizer; everything that does not fit is listed. Nothing has changed.
///
/// Names are those of the [`StateDict`](crate::optim::StateDict). A parameter that was renamed is missing by its new name and unexpected by
/// its old one; the state of another optimizer lacks the tensors that this one needs.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::optim::Commit;
/// use candle_headroom::{AdamW, Error};
///
/// let w = Var::new(&[0f32], &Device::Cpu)?;
/// let saved = AdamW::builder(vec![("old", w.clone())]).build()?.state()?;
/// let mut renamed = AdamW::builder(vec![("new", w)]).build()?;
/// let Err(Error::State(error)) = renamed.load_state(&saved) else { panic!("other names") };
/// assert!(error.missing.contains(&"new.exp_avg".to_owned()));
/// assert!(error.unexpected.contains(&"old.exp_avg".to_owned()));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, thiserror::Error)]
#[error(
    "the saved state does not fit this optimizer{}{}{}",
    listed("missing", .missing), listed("unexpected", .unexpected), listed("unfit", .unfit)
)]
#[non_exhaustive]
pub struct StateError {
    /// Tensors that the optimizer needs and the state does not have.
    pub missing: Vec<String>,
    /// Tensors that the state has and the optimizer does not know.
    pub unexpected: Vec<String>,
    /// Entries that are not what the optimizer needs, each with what is wrong.
    pub unfit: Vec<String>,
}

impl StateError {
    pub(crate) fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.unfit.is_empty()
    }
}

/// `; missing: a, b`, or nothing if there are none.
pub(super) fn listed(what: &str, entries: &[String]) -> String {
    match entries {
        [] => String::new(),
        _ => format!("; {what}: {}", entries.join(", ")),
    }
}

/// A group of ranks cannot go on, in a way that a program can act upon. Ranks that are missing, or that differ, are
/// [`Invalid`](super::Invalid); [`Error::is_group`](super::Error::is_group) holds for both.
///
/// ```
/// use candle_headroom::Error;
/// use candle_headroom::error::GroupError;
///
/// /// Whether all ranks can go on with the next batch; otherwise they continue from a checkpoint in new processes.
/// fn can_go_on(error: &Error) -> bool {
///     matches!(error, Error::Group(error) if matches!(**error, GroupError::PeerFailed { .. }))
/// }
///
/// let broken = Error::from(GroupError::Broken("rank 1 was lost".to_owned()));
/// assert!(!can_go_on(&broken) && broken.is_group());
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// Another rank could not do its part, and told so. No rank has updated its parameters. The group goes on with the next call.
    #[error("rank {rank} failed in `{call}`: {reason}")]
    #[non_exhaustive]
    PeerFailed {
        /// The rank.
        rank: usize,
        /// What all ranks were doing.
        call: String,
        /// Its error, as text.
        reason: String,
    },
    /// Ranks died, hang, or have left the group. It cannot be used any more: continue from a checkpoint in a new process.
    #[error("{} lost in `{call}`: {reason}; start the job again from its last checkpoint", ranks_text(.ranks))]
    #[non_exhaustive]
    PeerLost {
        /// The ranks, as far as they are known.
        ranks: Vec<usize>,
        /// What this rank was doing.
        call: String,
        /// How it was noticed.
        reason: String,
    },
    /// The engine failed, or the group was used after it had failed. It cannot be used any more: continue from a checkpoint in a new process.
    #[error("{0}")]
    Broken(String),
}

/// `rank 3`, or `ranks 1, 2 and 5`.
pub(crate) fn ranks_text(ranks: &[usize]) -> String {
    let names: Vec<_> = ranks.iter().map(usize::to_string).collect();
    match names.as_slice() {
        [] => "some ranks".to_owned(),
        [only] => format!("rank {only}"),
        [first @ .., last] => format!("ranks {} and {last}", first.join(", ")),
    }
}
