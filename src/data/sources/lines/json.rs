use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;

use serde::de::DeserializeOwned;

use super::index::{Index, Line};
use crate::data::dataset::{Dataset, out_of_range};
use crate::error::{BoxedError, DataError, Result};

/// A file of JSON lines: a sample is the value in a line.
///
/// Blank lines are left out. The file is read once on opening, and 8 bytes are stored for each line, with 16 more where blank lines
/// come before it. A line is read and parsed when it is needed. What [`Lines`](super::Lines) says about files that change holds here
/// too.
///
/// ```
/// use candle_headroom::data::{Dataset, JsonLines};
///
/// #[derive(serde::Deserialize)]
/// struct Review {
///     text: String,
///     stars: u32,
/// }
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("train.jsonl");
/// std::fs::write(&path, "{\"text\": \"Fine.\", \"stars\": 4}\n{\"text\": \"No!\"}\n")?;
///
/// let reviews = JsonLines::<Review>::open(&path)?;
/// let review = reviews.get(0)?;
/// assert_eq!((review.text.as_str(), review.stars), ("Fine.", 4));
/// let error = reviews.get(1).err().unwrap(); // … at byte 44: line 2, column 15: missing field `stars`
/// assert!(error.to_string().ends_with("line 2, column 15: missing field `stars`"), "{error}");
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct JsonLines<T> {
    index: Index,
    sample: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned + Send> JsonLines<T> {
    /// Opens a file and finds its lines.
    ///
    /// # Errors
    /// [`DataError::File`] if the file cannot be read or is empty.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let index = Index::open(&path.into(), true)?;
        let sample = PhantomData;
        Ok(Self { index, sample })
    }

    /// The error with its place in the file instead of that in the line.
    fn wrong(&self, line: &Line, error: &serde_json::Error) -> DataError {
        let column = error.column();
        let place = format!(" at line {} column {column}", error.line());
        let message = error.to_string();
        let message = message.strip_suffix(&place).unwrap_or(&message);
        let offset = line.start + column.saturating_sub(1) as u64;
        let problem = format!("line {}, column {column}: {message}", line.number);
        DataError::file(self.index.path(), offset, problem)
    }
}

impl<T: DeserializeOwned + Send> Dataset for JsonLines<T> {
    type Sample = T;

    fn len(&self) -> usize {
        self.index.len()
    }

    /// Parses a line.
    ///
    /// # Errors
    /// [`DataError::File`] if the line is no such value, with its number and the byte offset, or if the file has changed since it
    /// was opened, and [`DataError::OutOfRange`].
    fn get(&self, index: usize) -> Result<T, BoxedError> {
        let line = self.index.line(index)?;
        let line = line.ok_or_else(|| out_of_range(self, index))?;
        Ok(serde_json::from_slice(&line.bytes).map_err(|error| self.wrong(&line, &error))?)
    }

    /// Returns the bytes from this line to the next one that is a sample.
    fn cost(&self, index: usize) -> usize {
        self.index
            .range(index)
            .map_or(1, |range| (range.end - range.start) as usize)
    }

    fn name(&self) -> String {
        self.index.path().display().to_string()
    }
}

impl<T> fmt::Debug for JsonLines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JsonLines")
            .field("index", &self.index)
            .finish()
    }
}
