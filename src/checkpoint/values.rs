use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::checkpoint::get;
use super::checkpoints::Checkpoints;
use super::folder::checkpoints;
use super::rotate::best_of;
use crate::error::{CheckpointError, Result};

impl Checkpoints {
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
}
