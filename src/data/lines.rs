//! Files of which each line is a sample.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::PathBuf;

use bytesize::ByteSize;
use memchr::memchr;
use serde::de::DeserializeOwned;

use super::open;
use super::starts::{INDEX, Starts};
use crate::data::dataset::{Dataset, out_of_range};
use crate::error::{BoxedError, DataError, Result};
use crate::fixed_file::FixedFile;

/// A text file: a sample is a line, without its ending.
///
/// A line ends with `\n` or `\r\n`, the last one also with the file. The file is read once on opening. Lines are read when they are needed, and
/// then checked to be UTF-8.
///
/// The index takes 16 bytes for each line, and at most [32 MiB](LinesBuilder::index_bytes): of more than 2 million lines only each second, fourth
/// and so on is stored. The others are found again by reading from there, up to 1,024 lines if the file has a billion. Up to 4 MiB of what was found
/// last are kept, so that lines in the order of the file, or [shuffled by blocks](super::LoaderBuilder::blocks), are still read once.
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
    file: FixedFile,
    skips_blank: bool,
    starts: Starts<Start>,
}

/// Where a line starts.
#[derive(Debug, Clone, Copy)]
struct Start {
    at: u64,
    /// The number of the lines before it, with those that are left out.
    before: u64,
}

/// Settings of [`Lines`], from [`Lines::builder`].
///
/// ```
/// # use candle_headroom::data::{Dataset, Lines};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("train.txt");
/// std::fs::write(&path, "one\n \ntwo\n")?;
/// let lines = Lines::builder(&path).skip_blank().open()?;
/// assert_eq!((lines.len(), lines.get(1)?), (2, "two".to_owned()));
/// # Ok::<(), candle_headroom::error::BoxedError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct LinesBuilder {
    path: PathBuf,
    skips_blank: bool,
    index: ByteSize,
}

impl Lines {
    /// Opens a file and finds its lines; blank ones are samples too.
    ///
    /// ```
    /// # use candle_headroom::data::{Dataset, Lines};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("train.txt");
    /// std::fs::write(&path, "one\n\ntwo\n")?;
    /// let lines = Lines::open(&path)?;
    /// assert_eq!((lines.len(), lines.get(1)?), (3, String::new()));
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`LinesBuilder::open`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        Self::builder(path).open()
    }

    /// Describes a file of lines; blank ones are samples by default.
    ///
    /// ```
    /// # use candle_headroom::data::{Dataset, Lines};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("train.txt");
    /// std::fs::write(&path, "one\ntwo")?;
    /// let lines = Lines::builder(&path).open()?;
    /// assert_eq!((lines.len(), lines.cost(0)?), (2, 4)); // 4 bytes: the line's ending counts
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn builder(path: impl Into<PathBuf>) -> LinesBuilder {
        LinesBuilder {
            path: path.into(),
            skips_blank: false,
            index: INDEX,
        }
    }
}

impl LinesBuilder {
    /// Leaves out lines that are empty or consist of ASCII whitespace.
    ///
    /// ```
    /// # use candle_headroom::data::{Dataset, Lines};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("train.txt");
    /// std::fs::write(&path, "\none\n \t\r\ntwo")?;
    /// assert_eq!(Lines::open(&path)?.len(), 4);
    /// assert_eq!(Lines::builder(&path).skip_blank().open()?.len(), 2);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn skip_blank(mut self) -> Self {
        self.skips_blank = true;
        self
    }

    /// Sets how many bytes the index of lines may take; 32 MiB by default. Less takes longer to find a line of a large file.
    ///
    /// ```
    /// # use candle_headroom::ByteSize;
    /// # use candle_headroom::data::{Dataset, Lines};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("train.txt");
    /// std::fs::write(&path, "one\ntwo\nthree\nfour\nfive")?;
    /// let lines = Lines::builder(&path).index_bytes(ByteSize(64)).open()?; // each second line
    /// assert_eq!((lines.len(), lines.get(3)?), (5, "four".to_owned()));
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn index_bytes(mut self, most: ByteSize) -> Self {
        self.index = most;
        self
    }

    /// Opens the file and finds its lines.
    ///
    /// ```
    /// # use candle_headroom::data::Lines;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("train.txt");
    /// std::fs::write(&path, "")?;
    /// let error = Lines::builder(&path).open().unwrap_err();
    /// assert!(error.to_string().ends_with("train.txt: is empty"), "{error}");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`DataError::File`] if the file cannot be read or is empty.
    pub fn open(self) -> Result<Lines> {
        let mut starts = Starts::new(self.index.as_u64());
        let mut lines = Lines {
            file: open(&self.path)?,
            skips_blank: self.skips_blank,
            starts: Starts::new(0),
        };
        let first = Start { at: 0, before: 0 };
        lines.find(first, None, |start| starts.push(start))?;
        starts.finish();
        lines.starts = starts;
        Ok(lines)
    }
}

/// What is read at once to find the lines.
const PIECE: u64 = 1 << 18;

/// A line without its ending, and where it is in the file.
struct Line {
    bytes: Vec<u8>,
    start: u64,
    /// Counted from 1, with those left out.
    number: u64,
}

impl Lines {
    /// Reads from the start of a line up to that of another one, or to the end of the file, and gives each line that is a sample.
    fn find(
        &self,
        from: Start,
        to: Option<Start>,
        mut found: impl FnMut(Start),
    ) -> Result<(), DataError> {
        let failed = |reason| DataError::io(self.file.path(), None, reason);
        let end = to.map_or(self.file.len(), |to| to.at);
        let (mut line, mut at, mut is_blank) = (from, from.at, self.skips_blank);
        let mut piece = Vec::new();
        while at < end {
            piece.resize((end - at).min(PIECE) as usize, 0);
            self.file.read_at(&mut piece, at).map_err(failed)?;
            let mut rest = &piece[..];
            while !rest.is_empty() {
                let newline = memchr(b'\n', rest);
                let (bytes, after) = rest.split_at(newline.map_or(rest.len(), |at| at + 1));
                is_blank = is_blank && bytes.iter().all(u8::is_ascii_whitespace);
                (rest, at) = (after, at + bytes.len() as u64);
                if newline.is_some() || at == self.file.len() {
                    if !is_blank {
                        found(line);
                    }
                    let before = line.before + 1;
                    (line, is_blank) = (Start { at, before }, self.skips_blank);
                }
            }
        }
        self.file.check().map_err(failed)
    }

    /// Where a line starts, and its bytes in the file with its ending and the lines left out after it.
    fn range(&self, index: usize) -> Result<(Start, Range<u64>)> {
        let found = self.starts.get(index, |from, to| {
            let mut starts = Vec::new();
            self.find(from, to, |start| starts.push(start))?;
            Ok::<_, DataError>(starts)
        })?;
        let (start, next) = found.ok_or_else(|| out_of_range(self, index))?;
        let end = next.map_or(self.file.len(), |next| next.at);
        Ok((start, start.at..end))
    }

    fn line(&self, index: usize) -> Result<Line> {
        let (start, range) = self.range(index)?;
        let read = self.file.read(range);
        let mut bytes = read.map_err(|reason| DataError::io(self.file.path(), start.at, reason))?;
        if let Some(newline) = memchr(b'\n', &bytes) {
            let is_windows = newline.checked_sub(1).and_then(|at| bytes.get(at)) == Some(&b'\r');
            bytes.truncate(newline - usize::from(is_windows));
        }
        Ok(Line {
            bytes,
            start: start.at,
            number: start.before + 1,
        })
    }
}

impl Dataset for Lines {
    type Sample = String;

    fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns a line.
    ///
    /// # Errors
    /// [`DataError::File`] if the line is not UTF-8, with the offset of the first wrong byte, or if the file has changed since it
    /// was opened; and another one for an index out of range.
    fn get(&self, index: usize) -> Result<String, BoxedError> {
        let line = self.line(index)?;
        let text = String::from_utf8(line.bytes);
        Ok(text.map_err(|error| {
            let offset = line.start + error.utf8_error().valid_up_to() as u64;
            DataError::file(self.file.path(), offset, "is not UTF-8")
        })?)
    }

    /// Returns the bytes from this line to the next one that is a sample.
    fn cost(&self, index: usize) -> Result<usize, BoxedError> {
        let (_, range) = self.range(index)?;
        Ok((range.end - range.start) as usize)
    }

    fn name(&self) -> String {
        self.file.path().display().to_string()
    }
}

/// A file of JSON lines: a sample is the value in a line.
///
/// Blank lines are left out. A line is read and parsed when it is needed. What [`Lines`] says about the index and about files that change holds
/// here too; `JsonLines::from` takes lines that were opened with options.
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
    lines: Lines,
    sample: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned + Send> JsonLines<T> {
    /// Opens a file and finds its lines.
    ///
    /// ```
    /// # use candle_headroom::data::{Dataset, JsonLines};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("train.jsonl");
    /// std::fs::write(&path, "[1, 2]\n\n[3]\n")?;
    /// let lists = JsonLines::<Vec<u32>>::open(&path)?;
    /// assert_eq!((lists.len(), lists.get(1)?), (2, vec![3]));
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// [`DataError::File`] if the file cannot be read or is empty.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        Ok(Lines::builder(path).skip_blank().open()?.into())
    }

    /// The error with its place in the file instead of that in the line.
    fn wrong(&self, line: &Line, error: &serde_json::Error) -> DataError {
        let column = error.column();
        let place = format!(" at line {} column {column}", error.line());
        let message = error.to_string();
        let message = message.strip_suffix(&place).unwrap_or(&message);
        let offset = line.start + column.saturating_sub(1) as u64;
        let problem = match column {
            // Of the value as a whole: its type refuses it.
            0 => format!("line {}: {message}", line.number),
            _ => format!("line {}, column {column}: {message}", line.number),
        };
        DataError::file(self.lines.file.path(), offset, problem)
    }
}

impl<T> From<Lines> for JsonLines<T> {
    fn from(lines: Lines) -> Self {
        let sample = PhantomData;
        Self { lines, sample }
    }
}

impl<T: DeserializeOwned + Send> Dataset for JsonLines<T> {
    type Sample = T;

    fn len(&self) -> usize {
        self.lines.len()
    }

    /// Parses a line.
    ///
    /// # Errors
    /// [`DataError::File`] if the line is no such value, with its number and the byte offset, or if the file has changed since it
    /// was opened; and another one for an index out of range.
    fn get(&self, index: usize) -> Result<T, BoxedError> {
        let line = self.lines.line(index)?;
        Ok(serde_json::from_slice(&line.bytes).map_err(|error| self.wrong(&line, &error))?)
    }

    /// Returns the bytes from this line to the next one that is a sample.
    fn cost(&self, index: usize) -> Result<usize, BoxedError> {
        self.lines.cost(index)
    }

    fn name(&self) -> String {
        self.lines.name()
    }
}

impl<T> fmt::Debug for JsonLines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JsonLines")
            .field("lines", &self.lines)
            .finish()
    }
}
