//! What can go wrong in a training, with losses, limits, saved state and other ranks, each error with the wrong value and the remedy.

use std::time::Duration;

use bytesize::ByteSize;

/// What can be wrong with a loss that a program, or its author, can act upon; any other loss that cannot be used is
/// [`is_loss`](super::Error::is_loss).
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::error::LossError;
/// use candle_headroom::{Error, GradientAccumulator, Sgd};
///
/// let w = Var::new(&[0f32], &Device::Cpu)?;
/// let accumulator = GradientAccumulator::builder(Sgd::builder(vec![w]).build()?).build()?;
/// let Err(Error::Loss(error)) = accumulator.gradients() else { panic!("no loss was added") };
/// assert_eq!(*error, LossError::Disconnected);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LossError {
    /// Two forward passes with the same parameters gave these two losses.
    #[error(
        "the loss is {0} and then {1} with the same parameters: draw random numbers by `nn::Dropout` and in `nn::seeded`, and keep what a forward pass changes in the `VarMap`"
    )]
    NotRepeatable(f64, f64),
    /// The gradients of these parameters are not the slopes of the loss.
    #[error(
        "the gradient of `{}` is not the slope of the loss: print the audit with `{{:#}}`; an operation between it and the loss has a wrong backward pass, as `conv1d` and `max_pool2d` of candle's tensors: `tensor.with_gradients()` of `candle_headroom::nn` has right ones",
        .0.join("`, `")
    )]
    WrongGradients(Vec<String>),
    /// The loss depends on no trained parameter.
    #[error(
        "no Var received a gradient from the loss: an operation without a backward pass (`softmax_last_dim`, fused norms, `detach`) lies between, or the optimizer was given other Vars than the model uses"
    )]
    Disconnected,
    /// The loss of samples together is not that of the same samples in parts, so an update would depend on the sizes of micro-batches.
    /// Nothing has changed.
    #[error(
        "the loss depends on how the batch is cut: samples 0..{samples} together have the loss {whole}, cut at {cut_at} {cut}, and the gradients differ by {difference:.2e} of their size, where rounding explains {allowed:.2e}. {cause} If it is meant so, build the trainer with `.unchecked_cuts()`"
    )]
    #[non_exhaustive]
    DependsOnCut {
        /// Number of samples that were compared, from the batch's first on.
        samples: usize,
        /// The first sample of the second part.
        cut_at: usize,
        /// The loss of all of them together.
        whole: f64,
        /// The loss of the two parts, combined by their weights.
        cut: f64,
        /// The norm of the difference of the gradients, divided by the gradients' norm.
        difference: f64,
        /// The largest such number that rounding explains.
        allowed: f64,
        /// What the gradients look like.
        cause: CutCause,
    },
}

/// The likely cause of [`LossError::DependsOnCut`]. Its `Display` names the remedy.
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

/// A limit on a device's memory that cannot be set, and that a program can do something about. Nothing has changed.
///
/// Other errors about memory are [`Invalid`](super::Invalid); [`Error::is_memory`](super::Error::is_memory) holds for both.
///
/// ```
/// use candle_headroom::error::MemoryError;
/// use candle_headroom::{ByteSize, DeviceMemory, Error};
///
/// // This program has no tracking allocator.
/// let error = DeviceMemory::host().limit(ByteSize::gib(1)).open().unwrap_err();
/// assert!(error.is_memory());
/// assert!(matches!(error, Error::Memory(memory) if *memory == MemoryError::AllocatorNotInstalled));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A limit on host memory without the tracking allocator.
    #[error(
        "only the tracking allocator can limit host memory: add these two lines to the program:\n    #[global_allocator]\n    static ALLOCATOR: candle_headroom::TrackingAllocator = candle_headroom::TrackingAllocator::system();"
    )]
    AllocatorNotInstalled,
    /// More than the limit is in use already.
    #[error("a limit of {} is below the {} in use already: raise it, or set it before building the model", ByteSize(*.limit), ByteSize(*.in_use))]
    #[non_exhaustive]
    BelowUse {
        /// The requested limit, in bytes.
        limit: u64,
        /// In use already, in bytes.
        in_use: u64,
    },
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

/// A group of ranks cannot be formed, or cannot go on, in a way that a program can act upon. [`Error::is_group`](super::Error::is_group) has
/// the others.
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
/// assert!(!can_go_on(&broken));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// Ranks have not joined in time.
    #[error(
        "{} did not join within {waited:?}: check that each of the {size} ranks was started, with the same address of rank 0",
        ranks_text(.ranks)
    )]
    #[non_exhaustive]
    Missing {
        /// The ranks that are missing.
        ranks: Vec<usize>,
        /// The size of the group.
        size: usize,
        /// How long rank 0 waited: the group's timeout.
        waited: Duration,
    },
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
    /// Models, options or the data of an update differ between the ranks.
    #[error("the ranks differ in {what}: {}", .differences.join("; "))]
    #[non_exhaustive]
    Different {
        /// What has to be the same.
        what: &'static str,
        /// One sentence for each difference.
        differences: Vec<String>,
    },
    /// The parameters of these ranks are no longer those of the others.
    #[error(
        "after {updates} updates the parameters of {} differ from those of the other ranks: continue from a checkpoint, and look for work \
         that differs between ranks, such as a learning rate set on one of them",
        ranks_text(.ranks)
    )]
    #[non_exhaustive]
    Diverged {
        /// The ranks that differ from the majority, or from rank 0 where there is none.
        ranks: Vec<usize>,
        /// Number of updates so far.
        updates: u64,
    },
    /// The group was used after it had failed.
    #[error(
        "the group of ranks has failed before ({0}): continue from a checkpoint in a new process"
    )]
    Broken(String),
    /// The engine failed. The group cannot be used any more.
    #[error("{engine} failed in {operation}: {reason}")]
    #[non_exhaustive]
    Engine {
        /// The engine, with its version.
        engine: String,
        /// The operation.
        operation: &'static str,
        /// The engine's own words.
        reason: String,
    },
    /// Ranks use one GPU, which NCCL does not allow.
    #[error(
        "{} use one GPU ({device}): give each rank its own, as `DeviceMemory::cuda(group.local_rank())` does, and start one rank for each GPU",
        ranks_text(.ranks)
    )]
    #[non_exhaustive]
    SameDevice {
        /// The ranks.
        ranks: Vec<usize>,
        /// The GPU.
        device: String,
    },
}

impl GroupError {
    /// Ranks that differ, with the first of the differences and the number of the others.
    pub(crate) fn different(what: &'static str, mut differences: Vec<String>) -> Self {
        const MOST: usize = 8;
        let hidden = differences.len().saturating_sub(MOST);
        differences.truncate(MOST);
        if hidden > 0 {
            differences.push(format!("and {hidden} more"));
        }
        Self::Different { what, differences }
    }
}

/// `rank 3`, or `ranks 1, 2 and 5`.
fn ranks_text(ranks: &[usize]) -> String {
    let names: Vec<_> = ranks.iter().map(usize::to_string).collect();
    match names.as_slice() {
        [] => "some ranks".to_owned(),
        [only] => format!("rank {only}"),
        [first @ .., last] => format!("ranks {} and {last}", first.join(", ")),
    }
}
