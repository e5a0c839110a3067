use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

use crate::error::DataError;
use crate::files;

/// An open file that several threads read, each at a place of its own. It has the length that it had when it was opened.
#[derive(Debug, Clone)]
pub(super) struct Source {
    file: Arc<Mutex<File>>,
    len: u64,
}

/// A reader from some place on.
#[derive(Debug)]
pub(super) struct From {
    source: Source,
    at: u64,
}

impl Source {
    pub fn open(path: &Path) -> std::result::Result<Self, DataError> {
        let io = |reason| DataError::io(path, None, reason);
        let file = files::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(DataError::file(path, None, "is not a regular file"));
        }
        Ok(Self {
            file: Arc::new(Mutex::new(file)),
            len: metadata.len(),
        })
    }
}

impl Length for Source {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Source {
    type T = BufReader<From>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let source = self.clone();
        Ok(BufReader::new(From { source, at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        // Before memory is asked for: a damaged file may state any length.
        if start
            .checked_add(length as u64)
            .is_none_or(|end| end > self.len)
        {
            let problem = format!(
                "{length} bytes at byte {start} are beyond the end at {}",
                self.len
            );
            return Err(ParquetError::EOF(problem));
        }
        let mut bytes = vec![0; length];
        let mut file = self.file.lock();
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }
}

impl Read for From {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut file = self.source.file.lock();
        file.seek(SeekFrom::Start(self.at))?;
        let read = file.read(buffer)?;
        self.at += read as u64;
        Ok(read)
    }
}
