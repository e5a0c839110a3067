use std::path::PathBuf;

use super::index::Index;
use crate::data::dataset::{Dataset, out_of_range};
use crate::error::{BoxedError, DataError, Result};

/// A text file: a sample is a line, without its ending.
///
/// A line ends with `\n` or `\r\n`, the last one also with the file. The file is read once on opening, and 8 bytes are stored for
/// each line. Lines are read when they are needed, and then checked to be UTF-8.
///
/// The file must stay as it is: once its length or its modification time has changed, reading is an error. To replace it, write a new
/// file and rename that; a dataset that is open keeps the old one.
///
/// ```
/// use candle_headroom::data::{Dataset, Lines};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("train.txt");
/// std::fs::write(&path, "one\r\n\ntwo\nthree")?;
///
/// let lines = Lines::open(&path)?;
/// assert_eq!((lines.len(), lines.get(2)?), (4, "two".to_owned()));
/// let lines = Lines::builder(&path).skip_blank().open()?;
/// assert_eq!((lines.len(), lines.get(2)?), (3, "three".to_owned()));
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug)]
pub struct Lines {
    index: Index,
}

/// Settings of [`Lines`], from [`Lines::builder`].
#[derive(Debug, Clone)]
#[must_use]
pub struct LinesBuilder {
    path: PathBuf,
    skips_blank: bool,
}

impl Lines {
    /// Opens a file and finds its lines; blank ones are samples too.
    ///
    /// # Errors
    /// Those of [`LinesBuilder::open`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        Self::builder(path).open()
    }

    /// Describes a file of lines.
    pub fn builder(path: impl Into<PathBuf>) -> LinesBuilder {
        LinesBuilder {
            path: path.into(),
            skips_blank: false,
        }
    }
}

impl LinesBuilder {
    /// Leaves out the lines of nothing but ASCII whitespace.
    pub fn skip_blank(mut self) -> Self {
        self.skips_blank = true;
        self
    }

    /// Opens the file and finds its lines.
    ///
    /// # Errors
    /// [`DataError::File`] if the file cannot be read or is empty.
    pub fn open(self) -> Result<Lines> {
        let index = Index::open(&self.path, self.skips_blank)?;
        Ok(Lines { index })
    }
}

impl Dataset for Lines {
    type Sample = String;

    fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns a line.
    ///
    /// # Errors
    /// [`DataError::File`] if the line is not UTF-8, with the offset of the first wrong byte, or if the file has changed since it
    /// was opened, and [`DataError::OutOfRange`].
    fn get(&self, index: usize) -> Result<String, BoxedError> {
        let line = self.index.line(index)?;
        let line = line.ok_or_else(|| out_of_range(self, index))?;
        let text = String::from_utf8(line.bytes);
        Ok(text.map_err(|error| {
            let offset = line.start + error.utf8_error().valid_up_to() as u64;
            DataError::file(self.index.path(), offset, "is not UTF-8")
        })?)
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
