//! How a checkpoint is begun and how it ended, as all ranks hear of it: rank 0 writes, and its word counts for all but the signal.
//!
//! Of a sharded optimizer's state each rank writes its part, if rank 0 sees all of them in its folder, and otherwise all of it goes to rank 0.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Tensor;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::checkpoints::Checkpoints;
use super::document::{Document, Fingerprint};
use super::files::{NewFile, sync_folder};
use super::folder::{Name, Partial, file_name};
use super::outcome::{Saving, is_of_saving, unwritten};
use super::signals::Signal;
use super::snapshot::{PART, Parts, Snapshot, State, tensor_files};
use super::writer::write_and_rotate;
use crate::distributed::Group;
use crate::elements::size;
use crate::error::{Error, Result, different};
use crate::files::is_plain;
use crate::memory::DeviceMemory;
use crate::optim::{PIECES, StateDict, take_pieces};
use crate::train::Resumable;

/// The name of the call in which ranks agree on their parts of the state.
const PARTS: &str = "save state";

/// What the ranks tell each other when they meet. Of all but the signal rank 0's counts.
#[derive(Debug, Serialize, Deserialize)]
struct Word {
    saving: Option<Told>,
    /// The name of the last checkpoint.
    last: Option<String>,
    next: u64,
    signal: Option<Signal>,
}

/// [`Saving`] as others hear of it.
#[derive(Debug, Serialize, Deserialize)]
enum Told {
    NotDue,
    Started,
    Saved(String),
    Busy,
    Failed(String),
}

impl Checkpoints {
    /// What became of the checkpoint before, or `None` if the next one is due and can begin.
    pub(super) fn unless_due(&mut self, step: u64) -> Result<Option<Saving>> {
        let ended = match self.writer.poll() {
            Some((_, path)) => self.ended(step, path)?,
            None => Saving::NotDue,
        };
        let has_failed = matches!(ended, Saving::Failed(_));
        Ok(match has_failed || !self.schedule.is_due(step) {
            true => Some(ended),
            false => self.writer.is_busy().then_some(Saving::Busy),
        })
    }

    /// Begins a checkpoint, in the background if its memory is there.
    pub(super) fn begin<T: Resumable + ?Sized>(
        &mut self,
        trainer: &T,
        loss: Option<f64>,
        state: State,
    ) -> Result<Saving> {
        let snapshot = self.snapshot(trainer, loss, state, self.settings.in_background)?;
        if !snapshot.is_copy {
            return self.write(&snapshot);
        }
        let (step, folder) = (snapshot.step, &self.folder.path);
        let (keep, upload) = (self.settings.keep.clone(), self.settings.upload.clone());
        match self.writer.start(snapshot, folder, keep, upload) {
            Ok(()) => Ok(Saving::Started),
            Err(error) => self.ended(step, Err(error)),
        }
    }

    /// Saves while the caller waits.
    pub(super) fn save<T: Resumable + ?Sized>(
        &mut self,
        trainer: &T,
        loss: Option<f64>,
        state: State,
    ) -> Result<Saving> {
        let snapshot = self.snapshot(trainer, loss, state, false)?;
        self.write(&snapshot)
    }

    fn write(&mut self, snapshot: &Snapshot) -> Result<Saving> {
        let (keep, upload) = (&self.settings.keep, self.settings.upload.as_ref());
        let path = write_and_rotate(snapshot, &self.folder.path, keep, upload);
        self.ended(snapshot.step, path)
    }

    /// Takes what is saved. The model is copied if that is asked for and there is room.
    fn snapshot<T: Resumable + ?Sized>(
        &mut self,
        trainer: &T,
        loss: Option<f64>,
        state: State,
        copies: bool,
    ) -> Result<Snapshot> {
        let step = trainer.updates();
        // The state is a copy in any case, so what is free now is there for the model.
        let model = trainer.values();
        let metrics = self.metrics.of(step, loss);
        let mut document = Document::new(step);
        document.metrics.clone_from(&metrics);
        document.values.clone_from(&self.values);
        let buffer = match copies {
            true => self.room_for(&model)?,
            false => None,
        };
        let most = self.settings.shard_bytes;
        let snapshot = Snapshot::take(model, state, document, most, buffer)?;
        self.metrics.begun(step, metrics);
        self.schedule.started(step);
        Ok(snapshot)
    }

    /// A buffer for a copy of the model, if there is room for one.
    fn room_for(&mut self, model: &[(String, Tensor)]) -> Result<Option<Vec<u8>>> {
        let bytes: usize = model.iter().map(|(_, tensor)| size(tensor)).sum();
        let more = (bytes as u64).saturating_sub(self.writer.buffer_bytes());
        if more > 0 && DeviceMemory::host().open()?.would_fit(more) == Some(false) {
            return Ok(None);
        }
        Ok(self.writer.take_buffer(bytes))
    }

    /// Takes over how writing ended. An error that is not the file system's comes back.
    pub(super) fn ended(&mut self, step: u64, path: Result<PathBuf>) -> Result<Saving> {
        match path {
            Ok(path) => {
                self.schedule.succeeded();
                self.metrics.succeeded();
                self.last_error = None;
                self.last = Some(path.clone());
                Ok(Saving::Saved(path))
            }
            Err(error) => {
                self.schedule.failed(step);
                self.metrics.failed();
                if !is_of_saving(&error) {
                    return Err(error);
                }
                tracing::warn!(%error, "a checkpoint could not be written");
                let error = Arc::new(error);
                self.last_error = Some(Arc::clone(&error));
                Ok(Saving::Failed(error))
            }
        }
    }

    /// Calls `f`, which saves the trainer, on the rank that writes, when the others have written what they alone have.
    pub(super) fn as_writer<T: Resumable + ?Sized>(
        &mut self,
        trainer: &T,
        f: impl FnOnce(&mut Self, State) -> Result<Saving>,
    ) -> Result<Option<Saving>> {
        let _working = self.working();
        self.settle();
        let is_writer = self.is_writer();
        let owned = match is_writer {
            true => self.folder.check_owner().map_err(Error::from),
            false => Ok(()),
        };
        let group = self.group.as_ref();
        let state = match group.and_then(|group| Some((group, trainer.part().transpose()?))) {
            Some((group, part)) => self.write_parts(group, trainer, owned.and(part)),
            None if is_writer => {
                owned.and_then(|()| Ok(Some((trainer.state()?, Parts::default()))))
            }
            None => Ok(None),
        };
        match state {
            Ok(Some(state)) => f(self, state).map(Some),
            Ok(None) => Ok(None),
            Err(error) if !is_of_saving(&error) => Err(error),
            Err(error) if is_writer => self.ended(trainer.updates(), Err(error)).map(Some),
            Err(error) => Ok(Some(Saving::Failed(Arc::new(error)))),
        }
    }

    /// Has each rank write its part of the optimizer's state into a file of its own. Where rank 0 does not see all of these, the whole
    /// state comes to it instead. `None` on the other ranks. If one rank cannot write, all have an error of saving.
    fn write_parts<T: Resumable + ?Sized>(
        &self,
        group: &Group,
        trainer: &T,
        part: Result<StateDict>,
    ) -> Result<Option<State>> {
        let (rank, folder) = (group.rank(), &self.folder.path);
        let stem = |rank| format!("{PART}{rank:05}-of-{:05}", group.size());
        let name = |rank| format!("{}.safetensors", stem(rank));
        let begun = part.and_then(|mut part| {
            let text = (PIECES, take_pieces(&mut part.metadata)?);
            let tensors = std::mem::take(&mut part.tensors).into_iter().collect();
            let (own, _) = tensor_files(&stem(rank), tensors, u64::MAX, text)?;
            let partial = (rank == 0).then(|| Partial::of_step(folder, trainer.updates()));
            Ok((part, own, partial.transpose()?))
        });
        let say = |(part, _, partial): &(StateDict, _, Option<Partial>)| {
            let place = partial.as_ref().map(|partial| file_name(&partial.path));
            (place, part.metadata.clone())
        };
        let ((mut state, own, partial), all) = agree(group, begun, say)?;
        // This rank's own comes first, since an error shows only some.
        let others = all.iter().map(|(_, it)| it).enumerate();
        let others = others.filter(|(_, it)| **it != state.metadata);
        let texts = std::iter::once((rank, &state.metadata)).chain(others);
        let texts = texts.map(|(rank, it)| format!("rank {rank} has {it:?}"));
        let texts: Vec<_> = texts.collect();
        if texts.len() > 1 {
            return Err(different("the optimizer's counters or options", texts));
        }

        // An empty file, by which rank 0 sees that this rank's folder is its own.
        let place = all.into_iter().next().and_then(|(place, _)| place);
        let place = place.filter(|place| is_plain(place) && Name::writer(place).is_some());
        let place = place.filter(|_| rank > 0).map(|place| folder.join(place));
        let is_folder = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|it| it.is_dir());
        let file = place.filter(is_folder);
        let file = file.map(|place| Ok((NewFile::create(place.join(name(rank)))?, place)));
        let (file, made) = agree(group, file.transpose(), Option::is_some)?;
        let is_shared = partial.as_ref().is_some_and(|partial| {
            let mut others = made.iter().enumerate().skip(1);
            others.all(|(rank, is_made)| *is_made && partial.holds(&name(rank)))
        });
        let (_, is_shared) = agree(group, Ok(()), |()| is_shared)?;
        if is_shared.first() != Some(&true) {
            drop((own, file));
            let state = trainer.state()?;
            // The ranks have met, so that none has a file open in it.
            drop(partial);
            return Ok((rank == 0).then(|| (state, Parts::default())));
        }

        let written = file.map(|(mut file, place)| {
            own.iter().try_for_each(|own| own.write(&mut file, &[]))?;
            file.end()?;
            let fingerprint = Fingerprint::new(file.finish()?);
            sync_folder(&place)?;
            Ok(fingerprint)
        });
        let (_, written) = agree(group, written.transpose(), Option::clone)?;
        if partial.is_none() {
            return Ok(None);
        }
        let written = written.into_iter().enumerate();
        let others = written.filter_map(|(rank, written)| Some((name(rank), written?)));
        state.metadata.extend(trainer.progress()?);
        let parts = Parts {
            partial,
            others: others.collect(),
            own,
        };
        Ok(Some((state, parts)))
    }

    /// Returns on all ranks what rank 0 has done. If one has failed, all fail.
    pub(super) fn together(
        &mut self,
        call: &str,
        done: Result<Option<Saving>>,
    ) -> Result<Option<Saving>> {
        let Some(group) = &self.group else {
            return done;
        };
        let word = |saving: &Option<Saving>| Word {
            saving: saving.as_ref().map(Told::new),
            last: self.last.as_deref().map(file_name),
            next: match self.writer.is_busy() {
                true => 0,
                false => self.schedule.next(),
            },
            signal: self.signals.received(),
        };
        let (own, words) = group.agree(call, done, word)?;
        self.known_signal = words.iter().find_map(|word| word.signal);
        let Some(first) = words.into_iter().next() else {
            return Ok(own);
        };
        self.next_meeting = first.next;
        if self.is_writer() {
            return Ok(own);
        }
        let folder = &self.folder.path;
        self.last = first.last.map(|name| folder.join(name));
        // A rank that could not save knows more of it than rank 0.
        let own = own.filter(|own| matches!(own, Saving::Failed(_)));
        let saving = own.or(first.saving.map(|told| told.saving(folder)));
        match &saving {
            Some(Saving::Saved(_)) => self.last_error = None,
            Some(Saving::Failed(error)) => self.last_error = Some(Arc::clone(error)),
            _ => {}
        }
        Ok(saving)
    }
}

impl Told {
    fn new(saving: &Saving) -> Self {
        match saving {
            Saving::NotDue => Self::NotDue,
            Saving::Started => Self::Started,
            Saving::Saved(path) => Self::Saved(file_name(path)),
            Saving::Busy => Self::Busy,
            Saving::Failed(error) => Self::Failed(error.to_string()),
        }
    }

    fn saving(self, folder: &Path) -> Saving {
        match self {
            Self::NotDue => Saving::NotDue,
            Self::Started => Saving::Started,
            Self::Saved(name) => Saving::Saved(folder.join(name)),
            Self::Busy => Saving::Busy,
            Self::Failed(reason) => Saving::Failed(Arc::new(unwritten(0, &reason))),
        }
    }
}

/// Gives all ranks what each says of its work. If one cannot write, all have an error of saving.
fn agree<T, W: Serialize + DeserializeOwned>(
    group: &Group,
    done: Result<T>,
    say: impl FnOnce(&T) -> W,
) -> Result<(T, Vec<W>)> {
    let done = match done {
        Err(error) if !is_of_saving(&error) => Err(error),
        done => Ok(done),
    };
    let say = |done: &Result<T>| done.as_ref().map(say).map_err(ToString::to_string);
    let (done, all) = group.agree(PARTS, done, say)?;
    let done = done?;
    let all = all.into_iter().enumerate();
    let all = all.map(|(rank, word)| word.map_err(|reason| unwritten(rank, &reason)));
    Ok((done, all.collect::<Result<_>>()?))
}
