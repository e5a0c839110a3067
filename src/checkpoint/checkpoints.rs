use std::collections::BTreeMap;
use std::ops::ControlFlow::{self, Break, Continue};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::bytes::size;
use super::checkpoint::{Checkpoint, get};
use super::document::Document;
use super::folder::{Folder, checkpoints};
use super::load::{Tolerance, check_memory, fit};
use super::name::Name;
use super::outcome::{Resumed, Saving, Stopped};
use super::rotate::best_of;
use super::schedule::Schedule;
use super::settings::Settings;
use super::signals::Watch;
use super::snapshot::Snapshot;
use super::writer::{Ended, Writer, write_and_rotate};
use crate::error::{CheckpointError, Error, Result};
use crate::memory::DeviceMemory;
use crate::train::{Resumable, StepReport};

const LOSS: &str = "loss";

/// Saves a run at intervals, on signals and on request, and continues it.
///
/// See the [module](super) for an example and for what is promised.
#[derive(Debug)]
pub struct Checkpoints {
    pub(super) folder: Folder,
    pub(super) settings: Settings,
    schedule: Schedule,
    pub(super) writer: Writer,
    signals: Watch,
    pub(super) values: BTreeMap<String, Value>,
    /// For the next checkpoint.
    metrics: BTreeMap<String, f64>,
    /// The highest step that was in the folder, until the run resumes.
    unread: Option<u64>,
    /// The last checkpoint that was written or resumed from.
    pub(super) last: Option<PathBuf>,
    last_error: Option<Arc<CheckpointError>>,
}

impl Checkpoints {
    pub(super) fn open(folder: &Path, settings: Settings) -> Result<Self> {
        let folder = Folder::open(folder)?;
        let signals = Watch::start(&settings.signals).map_err(|error| {
            CheckpointError::Setting(format!("`on_signals` is not possible here: {error}"))
        })?;
        Ok(Self {
            unread: checkpoints(&folder.path)?.first().map(|name| name.step),
            schedule: Schedule::new(settings.every, settings.every_time),
            folder,
            settings,
            writer: Writer::default(),
            signals,
            values: BTreeMap::new(),
            metrics: BTreeMap::new(),
            last: None,
            last_error: None,
        })
    }

    /// Continues from the newest intact checkpoint: sets the model's parameters in place, and the trainer's state. Returns `None` if the
    /// folder holds no checkpoint. The saved values replace those that were [set](Self::set) before.
    ///
    /// For a moment the host holds a copy of the parameters as they were, to restore them if something fails.
    ///
    /// # Errors
    /// [`CheckpointError`]: `NoneIntact`, `Differs` with every difference of the model, `Memory`, `Name`, `File`;
    /// [`StateError`](crate::error::StateError) with every difference of the optimizer's state; errors from candle. The trainer is as it
    /// was then.
    pub fn resume<T: Resumable + ?Sized>(&mut self, trainer: &mut T) -> Result<Option<Resumed>> {
        self.flush()?;
        let Some(checkpoint) = Checkpoint::latest(&self.folder.path)? else {
            return Ok(None);
        };
        let (saved, state) = (
            checkpoint.tensors("model")?,
            checkpoint.tensors("optimizer")?,
        );
        check_memory(
            checkpoint.path(),
            saved.bytes().saturating_add(state.bytes()),
        )?;
        let model = trainer.model();
        let fitting = fit(checkpoint.path(), &saved, &model, &Tolerance::default())?;
        let state = checkpoint.state()?;
        fitting.set(checkpoint.path(), || trainer.load_state(&state))?;

        let step = checkpoint.step();
        self.values.clone_from(&checkpoint.document.values);
        self.schedule.started(step);
        self.unread = None;
        let path = checkpoint.path().to_owned();
        self.last = Some(path.clone());
        let skipped = checkpoint.skipped().to_vec();
        let names = skipped
            .iter()
            .filter_map(|skipped| skipped.path.file_name()?.to_str());
        self.settings.keep.damaged = names.filter_map(Name::parse).collect();
        Ok(Some(Resumed {
            step,
            path,
            skipped,
        }))
    }

    /// Saves if it is due; to be called after each update. Returns `Break` if a [signal](super::CheckpointsBuilder::on_signals)
    /// has come: the run is saved then, and the loop should end.
    ///
    /// What the file system refuses does not end the training: it is returned in [`Saving::Failed`], logged, kept for
    /// [`last_error`](Self::last_error), and tried again.
    ///
    /// # Errors
    /// [`CheckpointError::NotResumed`] if the folder holds checkpoints of another run; `Name`; and errors of reading the trainer's
    /// state, such as a [`DeviceFault`](crate::DeviceFault).
    pub fn after<T: Resumable + ?Sized>(
        &mut self,
        report: &StepReport,
        trainer: &T,
    ) -> Result<ControlFlow<Stopped, Saving>> {
        self.refuse_if_unread()?;
        let step = trainer.updates();
        let ended = match self.writer.poll() {
            Some(ended) => self.note(step, ended.path)?,
            None => Saving::NotDue,
        };
        let signal = self.signals.received();
        let has_failed = matches!(ended, Saving::Failed(_));
        if signal.is_none() && (has_failed || !self.schedule.is_due(step)) {
            return Ok(Continue(ended));
        }
        if signal.is_none() && self.writer.is_busy() {
            return Ok(Continue(Saving::Busy));
        }
        self.read_loss(report)?;
        let Some(signal) = signal else {
            return self.begin(trainer).map(Continue);
        };
        let saved = match self.flush().and_then(|()| self.save(trainer)) {
            Ok(path) => Ok(path),
            Err(Error::Checkpoint(error)) => Err(self.keep_error(*error)),
            Err(other) => return Err(other),
        };
        Ok(Break(Stopped {
            signal,
            step,
            saved,
        }))
    }

    /// Saves now and waits until the checkpoint is on the disk. Returns its folder.
    ///
    /// # Errors
    /// [`CheckpointError`], and errors of reading the trainer's state.
    pub fn save_now<T: Resumable + ?Sized>(&mut self, trainer: &T) -> Result<PathBuf> {
        self.refuse_if_unread()?;
        self.flush()?;
        self.save(trainer)
    }

    /// Waits until the checkpoint that is written in the background is on the disk.
    ///
    /// # Errors
    /// [`CheckpointError`] if it could not be written. The next [`after`](Self::after) tries again.
    pub fn flush(&mut self) -> Result<()> {
        let Some(Ended { step, path }) = self.writer.wait() else {
            return Ok(());
        };
        match self.note(step, path)? {
            Saving::Failed(error) => Err(CheckpointError::Earlier(error).into()),
            _ => Ok(()),
        }
    }

    /// [Waits](Self::flush) for the background and ends. Dropping does so too, without the error. It saves nothing: call
    /// [`save_now`](Self::save_now) before, to keep the last updates.
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush).
    pub fn finish(mut self) -> Result<()> {
        self.flush()
    }

    /// Saves a value of the caller's with each further checkpoint, as JSON.
    ///
    /// # Errors
    /// [`CheckpointError::Value`] if it cannot be written as JSON.
    pub fn set<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> Result<()> {
        let value = serde_json::to_value(value).map_err(|reason| {
            let key = key.to_owned();
            CheckpointError::Value { key, reason }
        })?;
        self.values.insert(key.to_owned(), value);
        Ok(())
    }

    /// The value under a key: the one that was [set](Self::set), or after [`resume`](Self::resume) the saved one.
    ///
    /// # Errors
    /// [`CheckpointError::Value`] if it is not a `T`.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        get(&self.values, key)
    }

    /// Saves a number with the next checkpoint, for [`keep_best`](super::CheckpointsBuilder::keep_best). One that is not finite is
    /// ignored.
    pub fn metric(&mut self, name: &str, value: f64) {
        if value.is_finite() {
            self.metrics.insert(name.to_owned(), value);
        }
    }

    /// The last error of writing, until a checkpoint is written.
    pub fn last_error(&self) -> Option<&CheckpointError> {
        self.last_error.as_deref()
    }

    /// The checkpoint that [`keep_best`](super::CheckpointsBuilder::keep_best) keeps; `None` if none has the metric.
    ///
    /// # Errors
    /// [`CheckpointError::File`] if the folder cannot be read.
    pub fn best(&self) -> Result<Option<PathBuf>> {
        let Some(best) = &self.settings.keep.best else {
            return Ok(None);
        };
        let path = &self.folder.path;
        let name = best_of(path, &checkpoints(path)?, best);
        Ok(name.map(|name| path.join(name.to_string())))
    }

    fn refuse_if_unread(&self) -> Result<()> {
        match self.unread {
            Some(step) => Err(CheckpointError::NotResumed {
                folder: self.folder.path.clone(),
                step,
            }
            .into()),
            None => Ok(()),
        }
    }

    fn read_loss(&mut self, report: &StepReport) -> Result<()> {
        if !self.metrics.contains_key(LOSS) {
            self.metric(LOSS, report.loss.read()?);
        }
        Ok(())
    }

    /// Begins a checkpoint, in the background if its memory is there.
    fn begin<T: Resumable + ?Sized>(&mut self, trainer: &T) -> Result<Saving> {
        let model = trainer.model();
        let bytes: usize = model.iter().map(|parameter| size(&parameter.var)).sum();
        let more = (bytes as u64).saturating_sub(self.writer.buffer_bytes());
        let has_room = || -> Result<bool> {
            Ok(more == 0 || DeviceMemory::host().open()?.would_fit(more) != Some(false))
        };
        let step = trainer.updates();
        if !self.settings.in_background || !has_room()? {
            let snapshot = self.snapshot(trainer, None)?;
            let path = write_and_rotate(&snapshot, &self.folder.path, &self.settings.keep);
            return self.note(step, path);
        }
        let buffer = self.writer.take_buffer();
        let snapshot = self.snapshot(trainer, Some(buffer))?;
        let keep = self.settings.keep.clone();
        match self.writer.start(snapshot, &self.folder.path, keep) {
            Ok(()) => Ok(Saving::Started),
            Err(error) => self.note(step, Err(error)),
        }
    }

    /// Saves while the caller waits.
    fn save<T: Resumable + ?Sized>(&mut self, trainer: &T) -> Result<PathBuf> {
        let snapshot = self.snapshot(trainer, None)?;
        let path = write_and_rotate(&snapshot, &self.folder.path, &self.settings.keep)?;
        self.schedule.succeeded();
        self.last_error = None;
        self.last = Some(path.clone());
        Ok(path)
    }

    fn snapshot<T: Resumable + ?Sized>(
        &mut self,
        trainer: &T,
        buffer: Option<Vec<u8>>,
    ) -> Result<Snapshot> {
        let mut document = Document::new(trainer.updates());
        document.metrics.clone_from(&self.metrics);
        document.values.clone_from(&self.values);
        let (model, state) = (trainer.model(), trainer.state()?);
        let most = self.settings.shard_bytes;
        let snapshot = Snapshot::take(model, state, document, most, buffer)?;
        self.metrics.clear();
        self.schedule.started(snapshot.step);
        Ok(snapshot)
    }

    /// Takes over how writing ended. An error that is not the file system's comes back.
    fn note(&mut self, step: u64, path: Result<PathBuf>) -> Result<Saving> {
        match path {
            Ok(path) => {
                self.schedule.succeeded();
                self.last_error = None;
                self.last = Some(path.clone());
                Ok(Saving::Saved(path))
            }
            Err(Error::Checkpoint(error)) => {
                self.schedule.failed(step);
                Ok(Saving::Failed(self.keep_error(*error)))
            }
            Err(other) => Err(other),
        }
    }

    fn keep_error(&mut self, error: CheckpointError) -> Arc<CheckpointError> {
        tracing::warn!(%error, "a checkpoint could not be written");
        let error = Arc::new(error);
        self.last_error = Some(Arc::clone(&error));
        error
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        // An error is logged.
        let _ = self.flush();
    }
}
