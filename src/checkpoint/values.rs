use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::checkpoint::{get, unusable};
use super::checkpoints::Checkpoints;
use super::finite::check_finite;
use super::outcome::Resumed;
use super::signal::Signal;
use crate::error::{Error, Result};

impl Checkpoints {
    /// Saves a value of the caller's with each further checkpoint, as JSON. In a group rank 0's are saved, and after
    /// [`resume`](Self::resume) all ranks have them.
    ///
    /// # Errors
    /// An [error of checkpoints](Error::is_checkpoint) if it cannot be written as JSON, or would not be read again: JSON has no infinite numbers and no NaN.
    pub fn set<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> Result<()> {
        let value = check_finite(value).and_then(|()| serde_json::to_value(value));
        let value = value.map_err(unusable(key))?;
        self.values.insert(key.to_owned(), value);
        Ok(())
    }

    /// The value under a key: the one that was [set](Self::set), or after [`resume`](Self::resume) the saved one.
    ///
    /// # Errors
    /// An [error of checkpoints](Error::is_checkpoint) if it is not a `T`.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        get(&self.values, key)
    }

    /// Saves a number with the next checkpoint that can be written, for [`lowest`](super::CheckpointsBuilder::lowest) or [`highest`](super::CheckpointsBuilder::highest). One that is
    /// not finite is ignored. A step that is saved again keeps its numbers.
    pub fn metric(&mut self, name: &str, value: f64) {
        self.metrics.give(name, value);
    }

    /// Where the run continued; `None` for a run that began anew.
    pub fn resumed(&self) -> Option<&Resumed> {
        self.resumed.as_ref()
    }

    /// The last checkpoint that this run has written, or from which it was resumed; `None` before the first one.
    pub fn last(&self) -> Option<&Path> {
        self.last.as_deref()
    }

    /// The signal that has arrived, of those of [`on_signals`](super::CheckpointsBuilder::on_signals). Ask after the loop, because
    /// [`after`](Self::after) does not see what came after its last call. One that was not returned is there for the next
    /// `Checkpoints` of this process. In a group it is a signal that some rank had when all ranks last met here, such as in
    /// [`save_now`](Self::save_now), so that all return the same.
    pub fn signal(&self) -> Option<Signal> {
        match self.ranks.are_several() {
            true => self.ranks.signal,
            false => self.signals.received(),
        }
    }

    /// The last error of writing, until a checkpoint is written.
    pub fn last_error(&self) -> Option<&Error> {
        self.last_error.as_deref()
    }

    /// The checkpoint that [`lowest`](super::CheckpointsBuilder::lowest) or [`highest`](super::CheckpointsBuilder::highest) keeps; `None` if none has the metric.
    ///
    /// # Errors
    /// [`CheckpointError::File`](crate::error::CheckpointError::File) if the folder cannot be read.
    pub fn best(&self) -> Result<Option<PathBuf>> {
        let path = &self.folder.path;
        let name = self.settings.keep.best(path)?;
        Ok(name.map(|name| path.join(name.to_string())))
    }
}
