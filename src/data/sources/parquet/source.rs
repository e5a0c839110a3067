use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{ChunkReader, Length};

use super::page::{self, Stated};
use crate::error::DataError;
use crate::fixed_file::FixedFile;

/// An open file that several threads read, each at a place of its own.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub file: Arc<FixedFile>,
    /// Set once the metadata were read.
    chunks: Arc<OnceLock<Vec<Chunk>>>,
}

/// Where a column of a row group begins and ends, and what it states.
type Chunk = (Range<u64>, Stated);

/// A reader from some place on.
#[derive(Debug)]
pub(super) struct From {
    file: Arc<FixedFile>,
    at: u64,
    /// By the column, if a page begins there; until something is read, because a page whose header was read before begins elsewhere.
    stated: Option<Stated>,
}

impl Source {
    pub fn open(path: &Path) -> std::result::Result<Self, DataError> {
        let file = FixedFile::open(path).map_err(|reason| DataError::io(path, None, reason))?;
        Ok(Self {
            file: Arc::new(file),
            chunks: Arc::default(),
        })
    }

    /// Compares each page that is read from now on with what its column states.
    pub fn check_pages(&self, metadata: &ParquetMetaData) {
        let columns = metadata.row_groups().iter().flat_map(|it| it.columns());
        let chunks = columns.map(|column| {
            let (start, len) = column.byte_range();
            let [bytes, values] = [column.uncompressed_size(), column.num_values()]
                .map(|number| u64::try_from(number).unwrap_or(0));
            (start..start.saturating_add(len), Stated { bytes, values })
        });
        let mut chunks: Vec<_> = chunks.collect();
        chunks.sort_by_key(|(range, _)| range.start);
        let _ = self.chunks.set(chunks);
    }
}

impl Length for Source {
    fn len(&self) -> u64 {
        self.file.len()
    }
}

impl ChunkReader for Source {
    type T = BufReader<From>;

    /// The crate `parquet` reads the header of a page from here.
    fn get_read(&self, start: u64) -> Result<Self::T> {
        let chunks = self.chunks.get().map_or(&[][..], Vec::as_slice);
        let after = chunks.partition_point(|(range, _)| range.start <= start);
        let chunk = after.checked_sub(1).and_then(|at| chunks.get(at));
        let chunk = chunk.filter(|(range, _)| range.contains(&start));
        Ok(BufReader::new(From {
            file: Arc::clone(&self.file),
            at: start,
            stated: chunk.map(|(_, stated)| *stated),
        }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        // Before memory is asked for: a damaged file may state any length.
        let end = start.checked_add(length as u64);
        let Some(end) = end.filter(|end| *end <= self.file.len()) else {
            let problem = format!(
                "{length} bytes at byte {start} are beyond the end at {}",
                self.file.len()
            );
            return Err(ParquetError::EOF(problem));
        };
        Ok(self.file.read(start..end)?.into())
    }
}

impl Read for From {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = self.file.len().saturating_sub(self.at);
        let len = buffer
            .len()
            .min(usize::try_from(rest).unwrap_or(usize::MAX));
        let Some(buffer) = buffer.get_mut(..len) else {
            return Ok(0);
        };
        self.file.read_at(buffer, self.at)?;
        if let Some(stated) = self.stated.take() {
            page::check(buffer, stated).map_err(io::Error::other)?;
        }
        self.at += len as u64;
        Ok(len)
    }
}
