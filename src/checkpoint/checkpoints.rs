use std::collections::BTreeMap;
use std::ops::ControlFlow::{self, Break, Continue};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde::ser::Error as _;
use serde_json::Value;

use super::checkpoint::{get, unusable};
use super::folder::{Folder, Keep, checkpoints};
use super::outcome::{Resumed, Saving, Stopped, is_of_saving, shared};
use super::remote::Upload;
use super::schedule::Schedule;
use super::signals::{Signal, Watch};
use super::writer::Writer;
use crate::distributed::{Group, InStep, Working};
use crate::error::{Error, Result, invalid};
use crate::train::{Resumable, StepReport};

/// The name of the call in which ranks meet.
const AFTER: &str = "after";

/// Options of `Checkpoints`.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) every_updates: Option<u64>,
    pub(super) every_duration: Option<Duration>,
    pub(super) keep: Keep,
    pub(super) upload: Option<Upload>,
    pub(super) shard_bytes: u64,
    pub(super) in_background: bool,
    pub(super) signals: Vec<Signal>,
}

/// Saves a run at intervals, on signals and on request, and continues it.
///
/// See the [module](super) for an example and for what is promised.
///
/// ```
/// # use candle_headroom::checkpoint::{Checkpoint, Checkpoints};
/// # use candle_core::{DType, Device, Tensor, Var};
/// # use candle_headroom::{AdaptiveTrainer, Sgd};
/// # let temporary = tempfile::tempdir()?;
/// # let folder = temporary.path().join("run-7");
/// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
/// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
/// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
/// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
/// let mut checkpoints = Checkpoints::builder(&folder).every_updates(1).open()?;
/// checkpoints.resume_trainer(&mut trainer)?; // nothing to continue from yet
/// let report = trainer.step(&x, |x, _| x.broadcast_mul(&w)?.mean_all())?;
/// assert!(checkpoints.after(&report, &trainer)?.is_continue());
/// checkpoints.finish()?;
/// assert_eq!(Checkpoint::latest(&folder)?.expect("one was saved").step(), 1);
/// # Ok::<(), candle_headroom::error::BoxedError>(())
/// ```
#[derive(Debug)]
pub struct Checkpoints {
    pub(super) folder: Folder,
    pub(super) settings: Settings,
    pub(super) schedule: Schedule,
    pub(super) writer: Writer,
    pub(super) signals: Watch,
    pub(super) values: BTreeMap<String, Value>,
    pub(super) metrics: Metrics,
    /// The highest step that was in the folder, until the run resumes.
    pub(super) unread: Option<u64>,
    /// The ranks of a run, which make the same calls. Rank 0 writes. `None` if there are no others.
    pub(super) group: Option<Group>,
    /// A rank waits for signals, for which all ask after each update.
    watches: bool,
    /// The first update after which rank 0 may have something to tell.
    pub(super) next_meeting: u64,
    /// A signal that all ranks know of.
    pub(super) known_signal: Option<Signal>,
    /// Where the run continued.
    pub(super) resumed: Option<Resumed>,
    /// The last checkpoint that was written or resumed from.
    pub(super) last: Option<PathBuf>,
    pub(super) last_error: Option<Arc<Error>>,
}

impl Checkpoints {
    /// All ranks open theirs, if the settings were found to be right.
    pub(super) fn open(
        folder: &Path,
        settings: Settings,
        group: Option<Group>,
        checked: Result<()>,
    ) -> Result<Self> {
        let group = group.filter(|group| group.size() > 1);
        let _working = group.as_ref().map(Group::working);
        let is_writer = group.as_ref().is_none_or(|group| group.rank() == 0);
        let opened = checked.and_then(|()| Self::open_own(folder, settings, is_writer));
        let mut own = match &group {
            Some(group) => {
                let word = |own: &Self| (own.unread, !own.settings.signals.is_empty());
                let (mut own, words) = group.agree("open checkpoints", opened, word)?;
                own.unread = words.first().and_then(|(unread, _)| *unread);
                own.watches = words.iter().any(|(_, watches)| *watches);
                own
            }
            None => opened?,
        };
        own.group = group;
        Ok(own)
    }

    fn open_own(folder: &Path, settings: Settings, is_writer: bool) -> Result<Self> {
        let folder = match is_writer {
            true => Folder::open(folder)?,
            false => Folder::of_other(folder),
        };
        if let Some(upload) = settings.upload.as_ref().filter(|_| is_writer) {
            upload.fetch(&folder.path)?;
        }
        let signals = Watch::start(&settings.signals)
            .map_err(|error| invalid!(Checkpoint, "`on_signals` is not possible here: {error}"))?;
        Ok(Self {
            unread: checkpoints(&folder.path)?.first().map(|name| name.step),
            schedule: Schedule::new(settings.every_updates, settings.every_duration),
            folder,
            settings,
            writer: Writer::default(),
            signals,
            values: BTreeMap::new(),
            metrics: Metrics::default(),
            group: None,
            watches: false,
            next_meeting: 0,
            known_signal: None,
            resumed: None,
            last: None,
            last_error: None,
        })
    }

    /// Saves a checkpoint if one is due. Call it after each update. Returns what was done, or `Break` if a
    /// [signal](super::CheckpointsBuilder::on_signals) has arrived: the run is saved then, and the loop should end.
    ///
    /// An error of the file system does not end the training: it is returned in [`Saving::Failed`], logged, returned by
    /// [`last_error`](Self::last_error), and saving is tried again.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use candle_headroom::checkpoint::{Checkpoints, Saving};
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
    /// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
    /// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let mut checkpoints = Checkpoints::builder(&folder).every_updates(2).in_foreground().open()?;
    /// let mut saved = Vec::new();
    /// while trainer.updates() < 4 {
    ///     let report = trainer.step(&x, |x, _| x.broadcast_mul(&w)?.mean_all())?;
    ///     match checkpoints.after(&report, &trainer)? {
    ///         ControlFlow::Continue(Saving::Saved(_)) => saved.push(trainer.updates()),
    ///         ControlFlow::Continue(_) => {}
    ///         ControlFlow::Break(stopped) => std::process::exit(stopped.signal.exit_status()),
    ///     }
    /// }
    /// assert_eq!(saved, [2, 4]);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// An [error of checkpoints](Error::is_checkpoint) if the folder held checkpoints when it was opened and this run did not resume from them, or
    /// two parameters have one name; and errors of reading the trainer's state, such as a [`DeviceFault`](crate::DeviceFault) or
    /// [`UpdateInterrupted`](crate::error::UpdateInterrupted).
    pub fn after<T: Resumable + ?Sized>(
        &mut self,
        report: &StepReport,
        trainer: &T,
    ) -> Result<ControlFlow<Stopped, Saving>> {
        self.refuse_if_unread()?;
        let step = trainer.updates();
        if self.group.is_some() && !self.watches && step < self.next_meeting {
            return Ok(Continue(Saving::NotDue));
        }
        let ended = self.unless_due(step);
        let ended = self.together(AFTER, ended)?;
        let Some(signal) = self.signal() else {
            return Ok(Continue(match ended {
                Some(ended) => ended,
                None => {
                    let begun = self.as_writer(trainer, |own, state| {
                        own.begin(trainer, loss(report), state)
                    });
                    self.together(AFTER, begun)?.unwrap_or(Saving::NotDue)
                }
            }));
        };
        let saved = self.as_writer(trainer, |own, state| {
            match own.save(trainer, loss(report), state) {
                // Such as two parameters of one name.
                Err(error) if is_of_saving(&error) => Ok(Saving::Failed(Arc::new(error))),
                saved => saved,
            }
        });
        let saved = self
            .together(AFTER, saved)?
            .unwrap_or(Saving::NotDue)
            .written();
        Ok(Break(Stopped {
            signal,
            step,
            saved,
        }))
    }

    /// Saves now and waits until the checkpoint is on the disk. Returns its folder.
    ///
    /// If a checkpoint of this update with the same content exists, it is verified and returned, and nothing is written; with a sharded optimizer
    /// the other ranks write their parts again first. If something has changed since, such as a [value](Self::set), the new checkpoint replaces
    /// the existing one and has its metrics too.
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
    /// let mut checkpoints = Checkpoints::builder(&folder).open()?;
    /// let saved = checkpoints.save_now(&trainer)?;
    /// assert_eq!(saved, folder.join("step-000000000"));
    /// assert_eq!(checkpoints.save_now(&trainer)?, saved); // nothing has changed since
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// An [error of checkpoints](Error::is_checkpoint) as in [`after`](Self::after), or if it could not be written:
    /// [`last_error`](Self::last_error) returns its cause, and the next [`after`](Self::after) tries again. Errors of reading the trainer's
    /// state, such as [`UpdateInterrupted`](crate::error::UpdateInterrupted).
    pub fn save_now<T: Resumable + ?Sized>(&mut self, trainer: &T) -> Result<PathBuf> {
        self.refuse_if_unread()?;
        let saved = self.as_writer(trainer, |own, state| own.save(trainer, None, state));
        let saved = self.together("save_now", saved)?.unwrap_or(Saving::NotDue);
        saved.written().map_err(shared)
    }

    /// Waits until the checkpoint that is written in the background is on the disk; in a group on all ranks.
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
    /// let mut checkpoints = Checkpoints::builder(&folder).every_updates(1).open()?;
    /// let report = trainer.step(&x, |x, _| x.broadcast_mul(&w)?.mean_all())?;
    /// assert!(checkpoints.after(&report, &trainer)?.is_continue()); // begins to write
    /// checkpoints.flush()?;
    /// assert_eq!(checkpoints.last(), Some(&*folder.join("step-000000001")));
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// An [error of checkpoints](Error::is_checkpoint) if it could not be written. The next [`after`](Self::after) tries again.
    pub fn flush(&mut self) -> Result<()> {
        let ended = self.wait();
        match self.together("flush", ended)? {
            Some(Saving::Failed(error)) => Err(shared(error)),
            _ => Ok(()),
        }
    }

    fn wait(&mut self) -> Result<Option<Saving>> {
        let _working = self.working();
        let Some((step, path)) = self.writer.wait() else {
            return Ok(None);
        };
        self.ended(step, path).map(Some)
    }

    /// [Waits](Self::flush) until the checkpoint in the background is on the disk, and releases the folder. It saves nothing: call
    /// [`save_now`](Self::save_now) before, to keep the last updates. Dropping the `Checkpoints` also waits, but hides the error, and in a group
    /// does not wait for other ranks.
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
    /// let mut checkpoints = Checkpoints::builder(&folder).open()?;
    /// let saved = checkpoints.save_now(&trainer)?; // the last updates
    /// checkpoints.finish()?;
    /// assert!(Checkpoints::builder(&folder).open().is_ok()); // another run can write now
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush).
    pub fn finish(mut self) -> Result<()> {
        self.flush()
    }

    /// Sets a value of the caller's, which is saved as JSON with each further checkpoint. In a group rank 0's values are saved, and after
    /// [`resume`](Self::resume) all ranks have them.
    ///
    /// ```
    /// # use candle_headroom::checkpoint::Checkpoints;
    /// # let folder = tempfile::tempdir().unwrap();
    /// let mut checkpoints = Checkpoints::builder(folder.path()).open()?;
    /// checkpoints.set("tokenizer", "bpe-32k")?;
    /// assert_eq!(checkpoints.get::<String>("tokenizer")?.as_deref(), Some("bpe-32k"));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// An [error of checkpoints](Error::is_checkpoint) if it cannot be written as JSON, or would not be read again: JSON has no infinite numbers and no NaN.
    pub fn set<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> Result<()> {
        let value = check_finite(value).and_then(|()| serde_json::to_value(value));
        let value = value.map_err(unusable(key))?;
        self.values.insert(key.to_owned(), value);
        Ok(())
    }

    /// Returns the value under a key: the one that was [set](Self::set), or after [`resume`](Self::resume) the saved one. `None` if there is
    /// none.
    ///
    /// ```
    /// # use candle_headroom::checkpoint::Checkpoints;
    /// # let folder = tempfile::tempdir().unwrap();
    /// let mut checkpoints = Checkpoints::builder(folder.path()).open()?;
    /// checkpoints.set("layers", &12)?;
    /// assert_eq!(checkpoints.get::<u32>("layers")?, Some(12));
    /// assert_eq!(checkpoints.get::<u32>("heads")?, None);
    /// assert!(checkpoints.get::<String>("layers").unwrap_err().is_checkpoint());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// An [error of checkpoints](Error::is_checkpoint) if it is not a `T`.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        get(&self.values, key)
    }

    /// Saves a number with the next checkpoint that is written, for [`lowest`](super::CheckpointsBuilder::lowest) or
    /// [`highest`](super::CheckpointsBuilder::highest). A number that is not finite is ignored. A step that is saved again keeps its numbers.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// # use candle_headroom::checkpoint::{Checkpoint, Checkpoints};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let optimizer = Sgd::builder(vec![("w", Var::new(3f32, &Device::Cpu)?)]).build()?;
    /// # let trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let mut checkpoints = Checkpoints::builder(folder.path()).highest("accuracy").open()?;
    /// checkpoints.metric("accuracy", 0.75); // of an evaluation
    /// let saved = checkpoints.save_now(&trainer)?;
    /// assert_eq!(Checkpoint::open(saved)?.metrics()["accuracy"], 0.75);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn metric(&mut self, name: &str, value: f64) {
        self.metrics.give(name, value);
    }

    /// Returns where the run continued; `None` for a run that began anew.
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
    /// assert!(checkpoints.resumed().is_none());
    /// checkpoints.resume_trainer(&mut trainer)?;
    /// assert_eq!(checkpoints.resumed().expect("it continued").step, 0);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn resumed(&self) -> Option<&Resumed> {
        self.resumed.as_ref()
    }

    /// Returns the folder of the last checkpoint that this run has written, or from which it was resumed; `None` before the first one.
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
    /// let mut checkpoints = Checkpoints::builder(&folder).open()?;
    /// assert_eq!(checkpoints.last(), None);
    /// let saved = checkpoints.save_now(&trainer)?;
    /// assert_eq!(checkpoints.last(), Some(&*saved));
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn last(&self) -> Option<&Path> {
        self.last.as_deref()
    }

    /// Returns the signal that has arrived, of those of [`on_signals`](super::CheckpointsBuilder::on_signals). Call it after the loop: a signal
    /// that arrives after the last call of [`after`](Self::after) was not returned there. A signal that no call has returned is reported to the
    /// next `Checkpoints` of this process. In a group it is a signal that some rank had when all ranks last made a call together, such as
    /// [`save_now`](Self::save_now), so that all ranks return the same.
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
    /// assert_eq!(checkpoints.signal(), None);
    /// # // SAFETY: the call takes a number. It returns when the signal has been handled.
    /// # unsafe { libc::raise(Signal::User1.number()) };
    /// // A signal has come after the last `after`.
    /// if let Some(signal) = checkpoints.signal() {
    ///     checkpoints.save_now(&trainer)?;
    ///     assert_eq!(signal, Signal::User1); // std::process::exit(signal.exit_status())
    /// }
    /// # assert!(folder.join("step-000000000").exists());
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn signal(&self) -> Option<Signal> {
        match self.group.is_some() {
            true => self.known_signal,
            false => self.signals.received(),
        }
    }

    /// Returns the last error of writing; `None` once a later checkpoint is on the disk.
    ///
    /// ```
    /// # use std::io::ErrorKind;
    /// # use candle_headroom::checkpoint::Checkpoints;
    /// # use candle_headroom::testing::{FileFaults, FileOperation};
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
    /// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
    /// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let mut checkpoints = Checkpoints::builder(&folder).open()?;
    /// # let faults = FileFaults::in_folder(&folder).only(FileOperation::Write).at(0);
    /// # let armed = faults.failing_with(ErrorKind::StorageFull).arm();
    /// assert!(checkpoints.save_now(&trainer).is_err()); // the disk is full
    /// assert!(checkpoints.last_error().expect("it failed").to_string().starts_with("cannot write "));
    /// # drop(armed);
    /// checkpoints.save_now(&trainer)?; // there is space again
    /// assert!(checkpoints.last_error().is_none());
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn last_error(&self) -> Option<&Error> {
        self.last_error.as_deref()
    }

    /// Returns the folder of the checkpoint that [`lowest`](super::CheckpointsBuilder::lowest) or
    /// [`highest`](super::CheckpointsBuilder::highest) keeps; `None` if no checkpoint has the metric, or neither option is set.
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
    /// let mut checkpoints = Checkpoints::builder(&folder).highest("accuracy").open()?;
    /// checkpoints.save_now(&trainer)?; // without the metric
    /// assert_eq!(checkpoints.best()?, None);
    /// trainer.step(&x, |x, _| x.broadcast_mul(&w)?.mean_all())?;
    /// checkpoints.metric("accuracy", 0.75);
    /// let saved = checkpoints.save_now(&trainer)?;
    /// assert_eq!(checkpoints.best()?, Some(saved));
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// [`CheckpointError::File`](crate::error::CheckpointError::File) if the folder cannot be read.
    pub fn best(&self) -> Result<Option<PathBuf>> {
        let path = &self.folder.path;
        let name = self.settings.keep.best(path)?;
        Ok(name.map(|name| path.join(name.to_string())))
    }

    /// Waits for this process's background. What follows does not depend on how it ended; a failure is logged.
    pub(super) fn settle(&mut self) {
        let _ = self.wait();
    }

    /// Whether this process writes.
    pub(super) fn is_writer(&self) -> bool {
        self.group.as_ref().is_none_or(|group| group.rank() == 0)
    }

    /// Work on files begins, for which other ranks wait: they do not give this one up while the guard lives.
    /// Until it is dropped, the others wait for this rank beyond the timeout, and hear of a panic.
    pub(super) fn working(&self) -> (Option<Working>, Option<InStep>) {
        let group = self.group.as_ref();
        let in_step = group.map(|group| group.in_step("save or load"));
        (group.map(Group::working), in_step)
    }

    fn refuse_if_unread(&self) -> Result<()> {
        match self.unread {
            Some(step) => Err(invalid!(
                Checkpoint,
                "{} holds step {step}, and this run did not resume from it: call `resume` before the first step, or use another folder",
                self.folder.path.display()
            )),
            None => Ok(()),
        }
    }
}

/// The loss to save. Where it cannot be read, the trainer's state, which all ranks read together, cannot be either and is the error.
fn loss(report: &StepReport) -> Option<f64> {
    let loss = report.loss.read();
    let loss = loss.inspect_err(|error| tracing::warn!(%error, "a loss cannot be read"));
    loss.ok()
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.settle();
    }
}

/// Fails at the first number that is not finite, which JSON has no text for: `serde_json` writes `null`, and that is not read as a number
/// again.
fn check_finite<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<()> {
    let value = ciborium::Value::serialized(value).map_err(serde_json::Error::custom)?;
    match infinite(&value) {
        None => Ok(()),
        Some(number) => Err(serde_json::Error::custom(format!(
            "{number} is not finite, and JSON has no such number: use an `Option`, or save it as text"
        ))),
    }
}

fn infinite(value: &ciborium::Value) -> Option<f64> {
    match value {
        ciborium::Value::Float(number) => Some(*number).filter(|number| !number.is_finite()),
        ciborium::Value::Tag(_, value) => infinite(value),
        ciborium::Value::Array(values) => values.iter().find_map(infinite),
        ciborium::Value::Map(entries) => {
            let mut all = entries.iter().flat_map(|(key, value)| [key, value]);
            all.find_map(infinite)
        }
        _ => None,
    }
}

type Numbers = BTreeMap<String, f64>;

/// Finite numbers that are saved with checkpoints.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    /// For the next checkpoint.
    given: Numbers,
    /// Those of them that the checkpoint has that is being written.
    taken: Numbers,
    /// All of the last checkpoint that was begun, and its step.
    last: (u64, Numbers),
}

impl Metrics {
    pub(super) fn give(&mut self, name: &str, value: f64) {
        if value.is_finite() {
            self.given.insert(name.to_owned(), value);
        }
    }

    /// Those of a checkpoint of this step. One that is saved again keeps what it had.
    pub(super) fn of(&self, step: u64, loss: Option<f64>) -> Numbers {
        let (last, numbers) = &self.last;
        let mut all = match *last == step {
            true => numbers.clone(),
            false => Numbers::new(),
        };
        let loss = loss.filter(|loss| loss.is_finite());
        all.extend(loss.map(|loss| ("loss".to_owned(), loss)));
        all.extend(self.given.clone());
        all
    }

    /// A checkpoint with these was begun.
    pub(super) fn begun(&mut self, step: u64, all: Numbers) {
        self.taken = std::mem::take(&mut self.given);
        self.last = (step, all);
    }

    /// The run continues from a checkpoint with these.
    pub(super) fn resumed(&mut self, step: u64, all: &Numbers) {
        self.last = (step, all.clone());
    }

    pub(super) fn succeeded(&mut self) {
        self.taken.clear();
    }

    /// What the caller gave goes along with the next attempt.
    pub(super) fn failed(&mut self) {
        let newer = std::mem::take(&mut self.given);
        self.given = std::mem::take(&mut self.taken);
        self.given.extend(newer);
    }
}
