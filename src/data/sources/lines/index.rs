use std::ops::Range;
use std::path::Path;

use memchr::{memchr, memchr_iter};

use crate::data::sources::mapped::Mapped;
use crate::error::DataError;

/// Where each line of a mapped file starts. A line ends with `\n` or `\r\n`, the last one also with the file.
#[derive(Debug)]
pub(super) struct Index {
    map: Mapped,
    starts: Vec<usize>,
}

/// A line without its ending, and where it is in the file.
pub(super) struct Line {
    pub bytes: Vec<u8>,
    pub start: usize,
}

impl Index {
    /// Reads a file once. Lines of nothing but ASCII whitespace can be left out.
    pub fn open(path: &Path, skips_blank: bool) -> Result<Self, DataError> {
        let map = Mapped::open(path)?;
        let bytes = map.bytes(0..map.len())?;
        let ends = memchr_iter(b'\n', bytes).map(|newline| newline + 1);
        let (mut starts, mut start) = (Vec::new(), 0);
        for end in ends.chain([bytes.len()]) {
            let line = bytes.get(start..end).unwrap_or_default();
            // Nothing follows a newline at the end of the file.
            let is_line = !line.is_empty();
            if is_line && !(skips_blank && line.iter().all(u8::is_ascii_whitespace)) {
                starts.push(start);
            }
            start = end;
        }
        starts.shrink_to_fit();
        Ok(Self { map, starts })
    }

    pub fn path(&self) -> &Path {
        self.map.path()
    }

    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// A line with its ending, and the lines left out after it.
    pub fn range(&self, index: usize) -> Option<Range<usize>> {
        let start = *self.starts.get(index)?;
        let next = self.starts.get(index + 1).copied();
        Some(start..next.unwrap_or(self.map.len()))
    }

    /// Copies a line, so that nobody changes it while it is checked and parsed; none outside of the file.
    pub fn line(&self, index: usize) -> Result<Option<Line>, DataError> {
        let Some(range) = self.range(index) else {
            return Ok(None);
        };
        let start = range.start;
        let bytes = self.map.bytes(range)?;
        let bytes = match memchr(b'\n', bytes).and_then(|newline| bytes.get(..newline)) {
            Some(line) => line.strip_suffix(b"\r").unwrap_or(line),
            None => bytes,
        };
        let bytes = bytes.to_vec();
        Ok(Some(Line { bytes, start }))
    }

    /// The number of the line that starts at a byte, from 1, with those left out.
    pub fn number(&self, start: usize) -> Result<usize, DataError> {
        Ok(memchr_iter(b'\n', self.map.bytes(0..start)?).count() + 1)
    }
}
