use std::path::Path;

use serde::{Deserialize, Serialize};

use super::checkpoint::Checkpoint;
use super::checkpoints::Checkpoints;
use super::manifest::Manifest;
use super::name::{Name, file_name};
use super::outcome::Resumed;
use super::verify::read_manifest;
use crate::error::{CheckpointError, Result, Skipped};
use crate::train::Resumable;

/// The name of the call in which ranks meet.
const CALL: &str = "resume";

/// The checkpoint from which rank 0 resumes, as the others hear of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Chosen {
    name: String,
    manifest: Manifest,
    skipped: Vec<(String, String)>,
}

impl Checkpoints {
    /// Continues from the newest intact checkpoint: sets the model's parameters in place, and the trainer's state. Returns `None` if the
    /// folder holds no checkpoint. The saved values replace those that were [set](Self::set) before.
    ///
    /// Only the run's writer can do so. In a [group](super::CheckpointsBuilder::group) rank 0 chooses the checkpoint, and all ranks read that one
    /// from their folders. All must be able to before the first one loads it.
    ///
    /// # Errors
    /// Those of [`Checkpoint::latest`] and [`Checkpoint::resume`]. The trainer is as it was then.
    ///
    /// In a group also [`NotShared`](CheckpointError::NotShared) on a rank that does not have this checkpoint;
    /// [`PeerFailed`](crate::error::GroupError::PeerFailed) with another rank's error; and [`PeerLost`](crate::error::GroupError::PeerLost). No
    /// trainer has changed then, unless memory ran out on a rank while it loaded what was found to fit: the others have loaded it, and an update
    /// that follows is an error.
    pub fn resume<T: Resumable + ?Sized>(&mut self, trainer: &mut T) -> Result<Option<Resumed>> {
        self.settle();
        let Some(checkpoint) = self.choose(trainer)? else {
            return Ok(None);
        };
        let loaded = checkpoint.resume(trainer);
        self.ranks.agree(CALL, loaded, |()| ())?;
        let step = checkpoint.step();
        self.values.clone_from(&checkpoint.document.values);
        self.metrics.resumed(step, checkpoint.metrics());
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

    /// The checkpoint that fits the trainers of all ranks.
    fn choose<T: Resumable + ?Sized>(&self, trainer: &T) -> Result<Option<Checkpoint>> {
        let folder = &self.folder.path;
        let latest = match self.ranks.is_writer() {
            true => Checkpoint::latest(folder),
            false => Ok(None),
        };
        if !self.ranks.are_several() {
            return latest;
        }
        let chosen = latest.and_then(|latest| {
            let chosen = latest.as_ref().map(Chosen::new).transpose()?;
            Ok((latest, chosen))
        });
        let word = |(_, chosen): &(_, Option<Chosen>)| chosen.clone();
        let ((own, _), words) = self.ranks.agree(CALL, chosen, word)?;
        let Some(chosen) = words.into_iter().next().flatten() else {
            return Ok(None);
        };
        let found = match own {
            Some(own) => Ok(own),
            None => chosen.find(folder),
        };
        let fitting = found.and_then(|found| {
            found.check(trainer)?;
            Ok(found)
        });
        let (fitting, _) = self.ranks.agree(CALL, fitting, |_| ())?;
        Ok(Some(fitting))
    }
}

impl Chosen {
    fn new(checkpoint: &Checkpoint) -> Result<Self> {
        let path = checkpoint.path();
        let manifest = read_manifest(path).map_err(|unfit| unfit.into_error(path))?;
        let skipped = checkpoint.skipped().iter();
        Ok(Self {
            name: file_name(path),
            manifest,
            skipped: skipped
                .map(|skipped| (file_name(&skipped.path), skipped.problem.clone()))
                .collect(),
        })
    }

    /// The same checkpoint in this rank's folder.
    fn find(self, folder: &Path) -> Result<Checkpoint> {
        let path = folder.join(&self.name);
        let absent = |reason: String| CheckpointError::NotShared {
            folder: folder.to_owned(),
            name: self.name.clone(),
            reason,
        };
        if !path.exists() {
            return Err(absent("there is no such folder".to_owned()).into());
        }
        let mut found = Checkpoint::open(&path).map_err(|error| absent(error.to_string()))?;
        if read_manifest(&path).ok().as_ref() != Some(&self.manifest) {
            let reason = "a checkpoint of that name is there, with other content".to_owned();
            return Err(absent(reason).into());
        }
        let skipped = self.skipped.iter();
        found.skipped = skipped
            .map(|(name, problem)| Skipped::new(&folder.join(name), problem))
            .collect();
        Ok(found)
    }
}
