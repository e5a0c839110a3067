use std::collections::BTreeMap;
use std::ops::ControlFlow::{self, Break, Continue};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::folder::{Folder, checkpoints};
use super::metrics::{Metrics, loss};
use super::outcome::{Resumed, Saving, Stopped, is_of_saving, shared};
use super::ranks::Ranks;
use super::schedule::Schedule;
use super::settings::Settings;
use super::signals::Watch;
use super::writer::{Ended, Writer};
use crate::distributed::Group;
use crate::error::{CheckpointError, Error, Result, invalid};
use crate::train::{Resumable, StepReport};

/// The name of the call in which ranks meet.
const AFTER: &str = "after";

/// Saves a run at intervals, on signals and on request, and continues it.
///
/// See the [module](super) for an example and for what is promised.
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
    pub(super) ranks: Ranks,
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
        let ranks = Ranks::new(group);
        let _working = ranks.working();
        let opened = checked.and_then(|()| Self::open_own(folder, settings, ranks.is_writer()));
        let word = |own: &Self| (own.unread, !own.settings.signals.is_empty());
        let (mut own, words) = ranks.agree("open checkpoints", opened, word)?;
        own.unread = words.first().and_then(|(unread, _)| *unread);
        own.ranks = ranks;
        own.ranks.watches = words.iter().any(|(_, watches)| *watches);
        Ok(own)
    }

    fn open_own(folder: &Path, settings: Settings, is_writer: bool) -> Result<Self> {
        let folder = match is_writer {
            true => Folder::open(folder)?,
            false => Folder::of_other(folder),
        };
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
            ranks: Ranks::default(),
            resumed: None,
            last: None,
            last_error: None,
        })
    }

    /// Saves if it is due; to be called after each update. Returns `Break` if a [signal](super::CheckpointsBuilder::on_signals)
    /// has come: the run is saved then, and the loop should end.
    ///
    /// What the file system refuses does not end the training: it is returned in [`Saving::Failed`], logged, kept for
    /// [`last_error`](Self::last_error), and tried again.
    ///
    /// # Errors
    /// [`CheckpointError::NotResumed`] if the folder holds checkpoints of another run; an [error of checkpoints](Error::is_checkpoint) if two
    /// parameters have one name; and errors of reading the trainer's state, such as a [`DeviceFault`](crate::DeviceFault) or [`UpdateInterrupted`](crate::error::UpdateInterrupted).
    pub fn after<T: Resumable + ?Sized>(
        &mut self,
        report: &StepReport,
        trainer: &T,
    ) -> Result<ControlFlow<Stopped, Saving>> {
        self.refuse_if_unread()?;
        let step = trainer.updates();
        if !self.ranks.meet_after(step) {
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
                saved => saved.map(Saving::from),
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

    /// Saves now and waits until the checkpoint is on the disk. Returns its folder. If the same content was saved before, after the
    /// update of this number, that checkpoint is verified and returned, and nothing is written; of a sharded optimizer the other ranks write
    /// their parts again first. What has changed since, such as a
    /// [value](Self::set), is saved in a checkpoint that replaces the one before, and has its metrics.
    ///
    /// # Errors
    /// An [error of checkpoints](Error::is_checkpoint), which after a failed write holds the one that [`last_error`](Self::last_error) returns,
    /// and the next [`after`](Self::after) tries again; errors of reading the trainer's state, such as [`UpdateInterrupted`](crate::error::UpdateInterrupted).
    pub fn save_now<T: Resumable + ?Sized>(&mut self, trainer: &T) -> Result<PathBuf> {
        self.refuse_if_unread()?;
        let saved = self.as_writer(trainer, |own, state| {
            own.save(trainer, None, state).map(Saving::from)
        });
        let saved = self.together("save_now", saved)?.unwrap_or(Saving::NotDue);
        saved.written().map_err(shared)
    }

    /// Waits until the checkpoint that is written in the background is on the disk; in a group on all ranks.
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
        let _working = self.ranks.working();
        let Some(Ended { step, path }) = self.writer.wait() else {
            return Ok(None);
        };
        self.ended(step, path).map(|ended| Some(ended.into()))
    }

    /// [Waits](Self::flush) for the background and ends. Dropping does so too, without the error, and in a group without waiting for other ranks. It saves nothing: call
    /// [`save_now`](Self::save_now) before, to keep the last updates.
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush).
    pub fn finish(mut self) -> Result<()> {
        self.flush()
    }

    /// Waits for this process's background. What follows does not depend on how it ended; a failure is logged.
    pub(super) fn settle(&mut self) {
        let _ = self.wait();
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
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.settle();
    }
}
