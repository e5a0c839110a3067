//! [`Error`], the two errors of training that contain one, and input that cannot be used.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use candle_core::{DType, Shape};

use super::circumstances::Phase;
use super::codes::DeviceFault;
use super::exhausted::ResourceExhausted;
use super::files::{BoxedError, CheckpointError, DataError, OutputError};
use super::training::{DependsOnCut, GroupError, StateError, ranks_text};
use super::unreached::UnreachedParameters;

#[cfg(feature = "nn")]
use crate::nn::RecomputeError;

/// This crate's result. With two types it is the standard library's, so that it can be imported in its place.
///
/// ```
/// use std::num::ParseFloatError;
///
/// use candle_core::{Device, Tensor};
/// use candle_headroom::Result;
///
/// fn sum(x: &Tensor) -> Result<f32> {
///     Ok(x.sum_all()?.to_scalar()?) // candle's errors are converted
/// }
///
/// fn number(text: &str) -> Result<f32, ParseFloatError> {
///     text.parse()
/// }
///
/// assert_eq!(sum(&Tensor::new(&[1f32, 2.], &Device::Cpu)?)?, 3.);
/// assert_eq!(number("3"), Ok(3.));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong in this crate.
///
/// It is `Send + Sync + 'static` and two words in size. `?` converts a [`candle_core::Error`] into it, classified, and back; one that is
/// neither an exhaustion nor a fault is kept unchanged. [`ErrorExt`](super::ErrorExt) classifies any other error.
///
/// `{}` is the text of the variant's content. An error of this crate shows its cause either in this text or as its
/// [`source`](StdError::source), never in both, so that a report of the whole chain, such as `anyhow`'s `{:#}`, says nothing twice.
/// [`downcast_ref`](Self::downcast_ref) finds causes of both kinds.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::Error;
///
/// fn forward() -> Result<Tensor, Error> {
///     let a = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
///     Ok(a.matmul(&a)?) // the shapes do not match: candle's own error comes through
/// }
///
/// let error = forward().unwrap_err();
/// assert!(error.resource_exhausted().is_none() && matches!(error, Error::Candle(_)));
/// ```
#[non_exhaustive]
pub enum Error {
    /// Memory ran out.
    ResourceExhausted(Box<ResourceExhausted>),
    /// The device is lost to this process.
    DeviceFault(Box<DeviceFault>),
    /// A setting, an argument, a batch or saved state cannot be used, or ranks differ: [`is_policy`](Self::is_policy) and its like say which.
    Invalid(Box<Invalid>),
    /// The loss depends on how the batch is cut.
    DependsOnCut(Box<DependsOnCut>),
    /// Saved state does not match the optimizer.
    State(Box<StateError>),
    /// A recomputed region did not do the same again.
    #[cfg(feature = "nn")]
    Recompute(Box<RecomputeError>),
    /// Trainable parameters received no gradient.
    UnreachedParameters(Box<UnreachedParameters>),
    /// The accumulated gradients were lost; parameters and optimizer are unchanged.
    WindowLost(Box<WindowLost>),
    /// The optimizer failed in the middle of an update; parameters and optimizer state may be partly updated.
    UpdateInterrupted(Box<UpdateInterrupted>),
    /// Samples cannot be read, or a loader does not continue a saved run.
    Data(Box<DataError>),
    /// A group of ranks cannot go on.
    Group(Box<GroupError>),
    /// A checkpoint cannot be written, found or loaded.
    Checkpoint(Box<CheckpointError>),
    /// A file cannot be written or read.
    Output(Box<OutputError>),
    /// The caller's own error, from [`Error::external`].
    External(Box<BoxedError>),
    /// Any other error of candle, unchanged.
    Candle(Box<candle_core::Error>),
}

macro_rules! contents {
    ($($(#[$when:meta])? $content:ident: $variant:ident),+ $(,)?) => {
        impl Error {
            pub(super) fn content(&self) -> &(dyn StdError + 'static) {
                match self {
                    $($(#[$when])? Self::$variant(content) => &**content,)+
                    Self::External(error) => &***error,
                    Self::Candle(error) => &**error,
                }
            }
        }

        $($(#[$when])?
        impl From<$content> for Error {
            fn from(content: $content) -> Self {
                Self::$variant(Box::new(content))
            }
        })+
    };
}

contents! {
    ResourceExhausted: ResourceExhausted,
    DeviceFault: DeviceFault,
    Invalid: Invalid,
    DependsOnCut: DependsOnCut,
    StateError: State,
    #[cfg(feature = "nn")]
    RecomputeError: Recompute,
    UnreachedParameters: UnreachedParameters,
    WindowLost: WindowLost,
    UpdateInterrupted: UpdateInterrupted,
    DataError: Data,
    GroupError: Group,
    CheckpointError: Checkpoint,
    OutputError: Output,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.content(), f)
    }
}

/// As [`Display`](fmt::Display), with the long form of an exhaustion and of unreached parameters: it stays readable inside
/// [`candle_core::Error::WrappedContext`] and when `main` returns it.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ResourceExhausted(exhausted) => fmt::Debug::fmt(exhausted, f),
            Self::UnreachedParameters(unreached) => fmt::Debug::fmt(unreached, f),
            other => fmt::Display::fmt(other, f),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.content().source()
    }
}

impl Error {
    /// The exhaustion, if this error is one: nothing has changed, and less work may fit.
    ///
    /// `UpdateInterrupted` and `WindowLost` do not count as exhaustion even when caused by it; check `reason`.
    ///
    /// ```
    /// use candle_headroom::Error;
    /// use candle_headroom::error::Resource;
    ///
    /// let text = "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")";
    /// let error = Error::from(candle_core::Error::msg(text));
    /// let exhausted = error.resource_exhausted().expect("an exhaustion");
    /// assert_eq!(exhausted.resource, Resource::DeviceMemory);
    /// ```
    pub fn resource_exhausted(&self) -> Option<&ResourceExhausted> {
        match self {
            Self::ResourceExhausted(exhausted) => Some(exhausted),
            _ => None,
        }
    }

    /// The device fault, if this error is one.
    ///
    /// ```
    /// use candle_headroom::Error;
    ///
    /// let text = "DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, \"an illegal memory access was encountered\")";
    /// let error = Error::from(candle_core::Error::msg(text));
    /// assert_eq!(error.device_fault().map(|fault| fault.code), Some(700));
    /// assert!(error.resource_exhausted().is_none());
    /// ```
    pub fn device_fault(&self) -> Option<&DeviceFault> {
        match self {
            Self::DeviceFault(fault) => Some(fault),
            _ => None,
        }
    }

    /// Sets the phase of an exhaustion that has none.
    pub(crate) fn in_phase(mut self, phase: Phase) -> Self {
        if let Self::ResourceExhausted(exhausted) = &mut self {
            exhausted.phase.get_or_insert(phase);
        }
        self
    }
}

/// Words by which the texts of these errors are known.
pub(super) const LOST: &str =
    "of earlier batches were lost, parameters and optimizer are unchanged";
pub(super) const INTERRUPTED: &str = "the optimizer was interrupted during an update";

/// The accumulated gradients were lost: a batch failed after something of it was added, the update could not begin, or the call
/// before panicked. Parameters and optimizer are unchanged; the window's samples count as not seen. A trainer that holds the
/// whole batch restarts the step by itself if the reason is an exhaustion.
///
/// ```
/// use candle_headroom::Error;
/// use candle_headroom::error::WindowLost;
///
/// /// The sample from which a loop of your own goes on, if it has read `position` samples and the last batch has `batch`.
/// fn repeat_from(error: &Error, position: usize, batch: usize) -> Option<usize> {
///     match error {
///         Error::WindowLost(lost) => Some(position - batch - lost.samples),
///         _ => None,
///     }
/// }
///
/// let reason = candle_core::Error::msg("the backward pass failed");
/// let error = Error::from(WindowLost::new(48, reason));
/// assert_eq!(repeat_from(&error, 480, 16), Some(416));
/// ```
#[derive(thiserror::Error)]
#[error(
    "the gradients of {samples} samples {}: run them again, and the batch that failed ({reason})",
    LOST
)]
#[non_exhaustive]
pub struct WindowLost {
    /// Number of samples of earlier calls, to run again. Those of the call that failed or panicked, which may have been added in
    /// part, are not counted and have to be run again too.
    pub samples: usize,
    /// The error that caused the loss.
    pub reason: Error,
}

impl WindowLost {
    /// The reason, with the samples that were lost, if there are any.
    pub(crate) fn with(samples: usize, reason: Error) -> Error {
        match samples {
            0 => reason,
            samples => Self::new(samples, reason).into(),
        }
    }

    /// Lost gradients of `samples` samples.
    ///
    /// ```
    /// use candle_headroom::error::WindowLost;
    ///
    /// let lost = WindowLost::new(48, candle_core::Error::msg("the backward pass failed"));
    /// assert!(lost.to_string().starts_with("the gradients of 48 samples of earlier batches were lost"));
    /// ```
    pub fn new(samples: usize, reason: impl Into<Error>) -> Self {
        let reason = reason.into();
        Self { samples, reason }
    }
}

/// The optimizer failed in the middle of an update that it cannot undo: parameters and the optimizer's state may be partly updated.
///
/// Another update would move the first parameters twice, and a checkpoint would hold half an update, so a trainer refuses every
/// further step, and to be saved. [`Checkpoints::resume`](crate::checkpoint::Checkpoints::resume) restores parameters and optimizer and
/// ends that. An optimizer that saves no state, as in [`Foreign`](crate::Foreign), is then replaced by a new one with `replace_optimizer`.
///
/// ```
/// use candle_headroom::Error;
/// use candle_headroom::error::UpdateInterrupted;
///
/// /// Whether parameters have to be restored before the next step.
/// fn needs_a_checkpoint(error: &Error) -> bool {
///     matches!(error, Error::UpdateInterrupted(_))
/// }
///
/// let reason = Error::from(candle_core::Error::msg("CUDA_ERROR_OUT_OF_MEMORY"));
/// let error = Error::from(UpdateInterrupted::new(reason));
/// assert!(needs_a_checkpoint(&error));
/// assert!(error.resource_exhausted().is_none()); // a retry would not help
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub struct UpdateInterrupted {
    /// The error that interrupted the update, or that a checkpoint was loaded in part; `None` if a further step was refused.
    pub reason: Option<Error>,
}

impl UpdateInterrupted {
    /// An update interrupted by `reason`, or refused without one.
    ///
    /// ```
    /// use candle_headroom::error::UpdateInterrupted;
    ///
    /// let refused = UpdateInterrupted::new(None);
    /// assert!(refused.reason.is_none());
    /// assert!(refused.to_string().starts_with("the optimizer was interrupted during an update"));
    /// ```
    pub fn new(reason: impl Into<Option<Error>>) -> Self {
        let reason = reason.into();
        Self { reason }
    }

    /// The error of an update of which a part was applied. A lost device keeps its own error, which says more.
    pub(crate) fn with(reason: impl Into<Error>) -> Error {
        match reason.into() {
            kept @ (Error::UpdateInterrupted(_) | Error::DeviceFault(_)) => kept,
            reason => Self::new(reason).into(),
        }
    }
}

impl fmt::Display for UpdateInterrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{INTERRUPTED}, parameters may be partly updated: resume from a checkpoint (or set the parameters and call `load_state`); an \
             optimizer that saves no state, as in `Foreign`, is then replaced by a new one with `replace_optimizer`",
        )?;
        match &self.reason {
            Some(reason) => write!(f, " ({reason})"),
            None => Ok(()),
        }
    }
}

/// The text of `Display`: `main` shows this one, and candle's own errors use one text for both.
macro_rules! debug_as_display {
    ($($error:ident),+) => {$(
        impl fmt::Debug for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )+};
}

debug_as_display!(WindowLost, UpdateInterrupted, Invalid);

/// A setting, an argument, a batch or saved state that cannot be used, or ranks that differ. Nothing has changed. Its text names the value and
/// the remedy.
///
/// What it is about says a question of [`Error`], such as [`Error::is_batch`]. A program can seldom do more about such an error than show
/// it; the cases that it can act upon are variants of [`Error`] and of the errors within.
///
/// ```
/// use candle_headroom::{Error, Predictive};
///
/// let error = Predictive::builder().margin(2.0).build().unwrap_err();
/// assert!(error.is_policy());
/// assert_eq!(error.to_string(), "`margin` must be in [0, 0.9], got 2.0");
/// ```
#[derive(thiserror::Error)]
#[error("{text}")]
pub struct Invalid {
    subject: Subject,
    text: String,
    cause: Option<BoxedError>,
}

macro_rules! subjects {
    ($($(#[doc = $doc:literal])+ $subject:ident $(| $variant:ident)?: $is:ident),+ $(,)?) => {
        /// What an [`Invalid`] is about.
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Subject {
            $($subject),+
        }

        impl Error {
            $(
                $(#[doc = $doc])+
                pub fn $is(&self) -> bool {
                    matches!(self, Self::Invalid(invalid) if invalid.subject == Subject::$subject)
                        $(|| matches!(self, Self::$variant(_)))?
                }
            )+
        }
    };
}

subjects! {
    /// Whether a batch cannot be cut into micro-batches.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom::Batch;
    ///
    /// let x = Tensor::zeros((8, 4), DType::F32, &Device::Cpu)?;
    /// let y = Tensor::zeros(7, DType::U32, &Device::Cpu)?; // one too few
    /// assert!((x, y).extent().unwrap_err().is_batch());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    Batch: is_batch,
    /// Whether a layer watcher cannot be installed.
    ///
    /// ```
    /// # #[cfg(feature = "layers")] {
    /// use candle_headroom::DeviceMemory;
    /// use candle_headroom::layers::LayerMemory;
    ///
    /// let layers = LayerMemory::new(&DeviceMemory::host().open()?);
    /// let _ = layers.install();
    /// assert!(layers.install().unwrap_err().is_layers()); // a process has one subscriber
    /// # }
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    Layers: is_layers,
    /// Whether a loss cannot be used: it is no single number, its weight is out of range, no parameter receives a gradient from it, or it
    /// [depends on the cut](super::DependsOnCut).
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::{GradientAccumulator, Sgd};
    ///
    /// let w = Var::new(&[1f32, 2.], &Device::Cpu)?;
    /// let optimizer = Sgd::builder(vec![w.clone()]).build()?;
    /// let mut accumulator = GradientAccumulator::builder(optimizer).build()?;
    /// assert!(accumulator.add(w.sqr()?, 2).unwrap_err().is_loss()); // two numbers
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    Loss | DependsOnCut: is_loss,
    /// Whether a device's memory cannot be opened, or its limit cannot be set.
    ///
    /// ```
    /// use candle_headroom::memory::Limit;
    /// use candle_headroom::DeviceMemory;
    ///
    /// // This program has no tracking allocator.
    /// let error = DeviceMemory::host().limit(Limit::Fraction(0.5)).open().unwrap_err();
    /// assert!(error.is_memory());
    /// ```
    Memory: is_memory,
    /// Whether a monitor cannot be started.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use candle_headroom::Monitor;
    ///
    /// let error = Monitor::builder().interval(Duration::ZERO).start().unwrap_err();
    /// assert!(error.is_monitor());
    /// ```
    Monitor: is_monitor,
    /// Whether an optimizer cannot use its arguments.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::AdamW;
    ///
    /// let w = Var::new(&[1f32], &Device::Cpu)?;
    /// let error = AdamW::builder(vec![w]).learning_rate(-0.1).build().unwrap_err();
    /// assert!(error.is_optimizer());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    Optimizer: is_optimizer,
    /// Whether the parameters or buffers given to a trainer cannot be used.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    ///
    /// let w = Var::new(&[1f32], &Device::Cpu)?;
    /// let error = Sgd::builder(vec![w.clone(), w]).build().unwrap_err(); // listed twice
    /// assert!(error.is_parameter());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    Parameter: is_parameter,
    /// Whether a batch policy was given an invalid setting, or saved state that is not its own.
    ///
    /// ```
    /// use candle_headroom::batch::Fixed;
    ///
    /// assert!(Fixed::new(0).unwrap_err().is_policy());
    /// ```
    Policy: is_policy,
    /// Whether a dry run (`testing::DryRun`, feature `testing`) has no result.
    ///
    /// ```
    /// # #[cfg(all(feature = "testing", unix))] {
    /// use candle_headroom::testing::DryRun;
    ///
    /// let error = DryRun::on("a card that nobody knows").run(|| Ok(())).unwrap_err();
    /// assert!(error.is_testing());
    /// # }
    /// ```
    Testing: is_testing,
    /// Whether a setting of a dataset or loader cannot be used, or samples cannot. [`DataError`](super::DataError) has the cases to act upon.
    ///
    /// ```
    /// use candle_headroom::batch::Division;
    ///
    /// assert!(Division::weighted([0, 0]).unwrap_err().is_data());
    /// ```
    Data | Data: is_data,
    /// Whether a setting of checkpoints, or a name or value to save, cannot be used, or a checkpoint cannot be written, found or loaded.
    /// [`CheckpointError`](super::CheckpointError) has the cases to act upon.
    ///
    /// ```
    /// # #[cfg(feature = "checkpoint")] {
    /// use candle_headroom::checkpoint::Checkpoints;
    ///
    /// let error = Checkpoints::builder("run-7").keep_last(0).open().unwrap_err();
    /// assert!(error.is_checkpoint());
    /// # }
    /// ```
    Checkpoint | Checkpoint: is_checkpoint,
    /// Whether ranks cannot form a group, differ in what they do, or have no engine for a device, or the group cannot go on.
    /// [`GroupError`](super::GroupError) has the cases to act upon.
    ///
    /// ```
    /// # #[cfg(feature = "distributed")] {
    /// use candle_headroom::distributed::Group;
    ///
    /// let variables = [("RANK", "one"), ("WORLD_SIZE", "2")]; // in place of the environment
    /// assert!(Group::builder().variables(variables).open().unwrap_err().is_group());
    /// # }
    /// ```
    Group | Group: is_group,
}

impl Invalid {
    pub(crate) fn new(subject: Subject, text: String) -> Self {
        Self {
            subject,
            text,
            cause: None,
        }
    }

    /// With the error behind it, which the text repeats, so that it is not the source.
    pub(crate) fn showing(self, cause: impl Into<BoxedError>) -> Self {
        let cause = Some(cause.into());
        Self { cause, ..self }
    }

    /// With the text of an error, which is behind it.
    pub(crate) fn of(subject: Subject, error: impl Into<BoxedError>) -> Self {
        let error = error.into();
        Self::new(subject, error.to_string()).showing(error)
    }

    pub(super) fn shown(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&**self.cause.as_ref()?)
    }
}

/// An [`Error`] about a subject, with a text as `format!` makes it.
macro_rules! invalid {
    ($subject:ident, $($text:tt)+) => {
        $crate::error::Error::from($crate::error::Invalid::new(
            $crate::error::Subject::$subject,
            format!($($text)+),
        ))
    };
}
pub(crate) use invalid;

/// A loss that is not a single number.
pub(crate) fn not_scalar(shape: &Shape) -> Error {
    invalid!(
        Loss,
        "the loss has shape {shape:?}: reduce it to one number with `mean_all()` or `sum_all()`"
    )
}

/// No parameter can be trained.
pub(crate) fn nothing_to_train() -> Error {
    invalid!(
        Parameter,
        "there is no floating-point Var to train: pass the `VarMap` or its `all_vars()` after the model was built"
    )
}

/// The same Var is in the list twice, the second time under this name, and would be updated twice.
pub(crate) fn listed_twice(parameter: &str) -> Error {
    invalid!(
        Parameter,
        "parameter `{parameter}` is listed twice: list each Var once"
    )
}

/// Gradients of this type cannot be accumulated.
pub(crate) fn untrainable(parameter: &str, dtype: DType) -> Error {
    invalid!(
        Parameter,
        "parameter `{parameter}` is {dtype:?}: gradients accumulate in f64, f32, f16 and bf16"
    )
}

/// No parameter has a name that matches this pattern.
pub(crate) fn no_match(pattern: &str) -> Error {
    invalid!(
        Parameter,
        "`allow_unreached`: no parameter has a name that matches `{pattern}`; `*` stands for any text, as in `pooler.*`, and a Var without a name has its place in the list"
    )
}

/// The group was used after it had failed.
pub(crate) fn failed_before(reason: &impl fmt::Display) -> Error {
    let text = "continue from a checkpoint in a new process";
    GroupError::Broken(format!(
        "the group of ranks has failed before ({reason}): {text}"
    ))
    .into()
}

/// An engine failed, with its version and its own words.
#[cfg(any(feature = "cuda", feature = "mpi"))]
pub(crate) fn engine_failed(engine: &str, operation: &str, reason: &impl fmt::Display) -> Error {
    GroupError::Broken(format!("{engine} failed in {operation}: {reason}")).into()
}

/// These ranks have not joined in time, while rank 0 has waited for so long.
pub(crate) fn missing(ranks: &[usize], size: usize, waited: Duration) -> Error {
    invalid!(
        Group,
        "{} did not join within {waited:?}: check that each of the {size} ranks was started, with the same address of rank 0",
        ranks_text(ranks)
    )
}

/// Models, options or the data of an update differ between the ranks. Shows the first of the differences and the number of the others.
pub(crate) fn different(what: &str, mut differences: Vec<String>) -> Error {
    const MOST: usize = 8;
    let hidden = differences.len().saturating_sub(MOST);
    differences.truncate(MOST);
    if hidden > 0 {
        differences.push(format!("and {hidden} more"));
    }
    let differences = differences.join("; ");
    invalid!(Group, "the ranks differ in {what}: {differences}")
}
