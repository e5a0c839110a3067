use std::ops::Range;
use std::path::Path;

use memchr::memchr;

use crate::data::sources::open;
use crate::error::DataError;
use crate::fixed_file::FixedFile;

/// What is read at once to find the lines.
const PIECE: u64 = 1 << 18;

/// Where each line of a file starts. A line ends with `\n` or `\r\n`, the last one also with the file.
#[derive(Debug)]
pub(super) struct Index {
    file: FixedFile,
    starts: Vec<u64>,
    /// Lines that were left out: before which of `starts`, and how many up to there in all.
    left_out: Vec<(usize, usize)>,
}

/// A line without its ending, and where it is in the file.
pub(super) struct Line {
    pub bytes: Vec<u8>,
    pub start: u64,
    /// Counted from 1, with those left out.
    pub number: usize,
}

impl Index {
    /// Reads a file once. Lines of nothing but ASCII whitespace can be left out.
    pub fn open(path: &Path, skips_blank: bool) -> Result<Self, DataError> {
        let file = open(path)?;
        let mut index = Self {
            file,
            starts: Vec::new(),
            left_out: Vec::new(),
        };
        let (mut start, mut is_blank) = (0, skips_blank);
        let mut piece = vec![0; PIECE.min(index.file.len()) as usize];
        let mut at = 0;
        while at < index.file.len() {
            piece.truncate((index.file.len() - at).min(PIECE) as usize);
            let read = index.file.read_at(&mut piece, at);
            read.map_err(|reason| DataError::io(path, None, reason))?;
            let mut rest = &piece[..];
            while !rest.is_empty() {
                let newline = memchr(b'\n', rest);
                let (line, after) = rest.split_at(newline.map_or(rest.len(), |at| at + 1));
                is_blank = is_blank && line.iter().all(u8::is_ascii_whitespace);
                (rest, at) = (after, at + line.len() as u64);
                if newline.is_some() || at == index.file.len() {
                    index.push(start, is_blank);
                    (start, is_blank) = (at, skips_blank);
                }
            }
        }
        let check = index.file.check();
        check.map_err(|reason| DataError::io(path, None, reason))?;
        index.starts.shrink_to_fit();
        Ok(index)
    }

    fn push(&mut self, start: u64, is_left_out: bool) {
        if !is_left_out {
            return self.starts.push(start);
        }
        let (before, all) = (self.starts.len(), self.left_out.last().map_or(0, |it| it.1));
        self.left_out.pop_if(|it| it.0 == before);
        self.left_out.push((before, all + 1));
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// A line with its ending, and the lines left out after it.
    pub fn range(&self, index: usize) -> Option<Range<u64>> {
        let start = *self.starts.get(index)?;
        let next = self.starts.get(index + 1).copied();
        Some(start..next.unwrap_or(self.file.len()))
    }

    /// Reads a line; none outside of the file.
    pub fn line(&self, index: usize) -> Result<Option<Line>, DataError> {
        let Some(range) = self.range(index) else {
            return Ok(None);
        };
        let start = range.start;
        let read = self.file.read(range);
        let mut bytes = read.map_err(|reason| DataError::io(self.path(), start, reason))?;
        if let Some(newline) = memchr(b'\n', &bytes) {
            let is_windows = newline.checked_sub(1).and_then(|at| bytes.get(at)) == Some(&b'\r');
            bytes.truncate(newline - usize::from(is_windows));
        }
        let before = self.left_out.partition_point(|(at, _)| *at <= index);
        let left_out = before.checked_sub(1).and_then(|at| self.left_out.get(at));
        Ok(Some(Line {
            bytes,
            start,
            number: index + 1 + left_out.map_or(0, |(_, all)| *all),
        }))
    }
}
