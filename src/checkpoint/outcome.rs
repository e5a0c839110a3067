use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::signals::Signal;
use crate::error::{Error, Invalid, Result, Skipped, Subject, invalid};

/// What [`Checkpoints::after`](super::Checkpoints::after) did, or how the checkpoint ended that was written in the background.
///
/// ```
/// # use candle_headroom::checkpoint::{Checkpoints, Saving};
/// # use candle_core::{DType, Device, Tensor, Var};
/// # use candle_headroom::{AdaptiveTrainer, Sgd};
/// # let temporary = tempfile::tempdir()?;
/// # let folder = temporary.path().join("run-7");
/// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
/// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
/// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
/// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
/// let mut checkpoints = Checkpoints::builder(&folder).every_updates(1).in_foreground().open()?;
/// let report = trainer.step(&x, |x, _| x.broadcast_mul(&w)?.mean_all())?;
/// let saving = checkpoints.after(&report, &trainer)?.continue_value().expect("no signal has come");
/// assert!(matches!(saving, Saving::Saved(path) if path.ends_with("step-000000001")));
/// # Ok::<(), candle_headroom::error::BoxedError>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Saving {
    /// Nothing was due.
    NotDue,
    /// A checkpoint was begun, and is written in the background. If the one before has reached the disk meanwhile, it is
    /// [`last`](super::Checkpoints::last).
    Started,
    /// A checkpoint has reached the disk: the one of this update, or the one that was written in the background until now.
    Saved(PathBuf),
    /// A checkpoint is due, and the one before is still being written: it is begun after the next update.
    Busy,
    /// A checkpoint could not be written. The older ones are as they were, and it is tried again: after the next update, then after
    /// 2, 4, 8 and so on up to 1024 updates.
    Failed(Arc<Error>),
}

/// Whether training goes on after this error of saving, which is tried again. Others are errors of the trainer, or of its device.
pub(super) fn is_of_saving(error: &Error) -> bool {
    error.is_checkpoint()
}

/// What other ranks hear of a rank's error.
pub(super) fn unwritten(rank: usize, reason: &str) -> Error {
    invalid!(
        Checkpoint,
        "rank {rank} could not write a checkpoint: {reason}"
    )
}

/// An error that the caller gets, and that is kept.
pub(super) fn shared(error: Arc<Error>) -> Error {
    Invalid::of(Subject::Checkpoint, error).into()
}

impl Saving {
    /// How a checkpoint was written for which the caller waited.
    pub(super) fn written(self) -> Result<PathBuf, Arc<Error>> {
        match self {
            Self::Saved(path) => Ok(path),
            Self::Failed(error) => Err(error),
            other => Err(Arc::new(unwritten(0, &format!("it ended as {other:?}")))),
        }
    }
}

/// Why the loop has to stop; from [`Checkpoints::after`](super::Checkpoints::after).
///
/// ```
/// # use candle_headroom::checkpoint::{Checkpoints, Signal};
/// # use candle_core::{DType, Device, Tensor, Var};
/// # use candle_headroom::{AdaptiveTrainer, Sgd};
/// # let temporary = tempfile::tempdir()?;
/// # let folder = temporary.path().join("run-7");
/// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
/// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
/// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
/// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
/// let mut checkpoints = Checkpoints::builder(&folder).on_signals([Signal::User1]).open()?;
/// let report = trainer.step(&x, |x, _| x.broadcast_mul(&w)?.mean_all())?;
/// # // SAFETY: the call takes a number. It returns when the signal has been handled.
/// # unsafe { libc::raise(Signal::User1.number()) };
/// // The signal has come during the step.
/// let stopped = checkpoints.after(&report, &trainer)?.break_value().expect("the signal");
/// assert_eq!((stopped.signal, stopped.step), (Signal::User1, 1));
/// assert!(stopped.to_string().starts_with("SIGUSR1 after step 1: saved in "));
/// # Ok::<(), candle_headroom::error::BoxedError>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Stopped {
    /// The signal that arrived.
    pub signal: Signal,
    /// Number of updates so far.
    pub step: u64,
    /// The checkpoint, or why it could not be saved.
    pub saved: Result<PathBuf, Arc<Error>>,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} after step {}: ", self.signal, self.step)?;
        match &self.saved {
            Ok(path) => write!(f, "saved in {}", path.display()),
            Err(error) => write!(f, "not saved, {error}"),
        }
    }
}

/// Where a run continues; from [`Checkpoints::resumed`](super::Checkpoints::resumed).
///
/// ```
/// # use candle_headroom::checkpoint::Checkpoints;
/// # use candle_core::{DType, Device, Tensor, Var};
/// # use candle_headroom::{AdaptiveTrainer, Sgd};
/// # let temporary = tempfile::tempdir()?;
/// # let folder = temporary.path().join("run-7");
/// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
/// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
/// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
/// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
/// Checkpoints::builder(&folder).open()?.save_now(&trainer)?;
/// let mut checkpoints = Checkpoints::builder(&folder).open()?; // of a later run
/// let resumed = checkpoints.resume_trainer(&mut trainer)?.expect("a checkpoint");
/// assert_eq!((resumed.step, &resumed.path), (0, &folder.join("step-000000000")));
/// assert!(resumed.skipped.is_empty() && resumed.changes.is_empty());
/// # Ok::<(), candle_headroom::error::BoxedError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resumed {
    /// Number of updates so far.
    pub step: u64,
    /// The checkpoint.
    pub path: PathBuf,
    /// Newer checkpoints that are damaged, newest first.
    pub skipped: Vec<Skipped>,
    /// What has changed in the loader's data since the run was saved, each with both values. Changes are an error unless the loader accepts
    /// them.
    pub changes: Vec<String>,
}

impl fmt::Display for Resumed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "resumed at step {} from {}",
            self.step,
            self.path.display()
        )?;
        for skipped in &self.skipped {
            write!(f, "; skipped {skipped}")?;
        }
        if !self.changes.is_empty() {
            write!(f, "; the data has changed: {}", self.changes.join(", "))?;
        }
        Ok(())
    }
}
