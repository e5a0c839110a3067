use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{ChunkReader, Length};

use crate::error::DataError;
use crate::fixed_file::FixedFile;

/// An open file that several threads read, each at a place of its own.
#[derive(Debug, Clone)]
pub(super) struct ParquetFile {
    pub file: Arc<FixedFile>,
    /// Set once the metadata were read.
    chunks: Arc<OnceLock<Vec<Chunk>>>,
}

/// Where a column of a row group begins and ends, and what it states.
type Chunk = (Range<u64>, Stated);

/// A reader from some place on.
#[derive(Debug)]
pub(super) struct PageBytes {
    file: Arc<FixedFile>,
    at: u64,
    /// By the column, if a page begins there; until something is read, because a page whose header was read before begins elsewhere.
    stated: Option<Stated>,
}

impl ParquetFile {
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

impl Length for ParquetFile {
    fn len(&self) -> u64 {
        self.file.len()
    }
}

impl ChunkReader for ParquetFile {
    type T = BufReader<PageBytes>;

    /// The crate `parquet` reads the header of a page from here.
    fn get_read(&self, start: u64) -> Result<Self::T> {
        let chunks = self.chunks.get().map_or(&[][..], Vec::as_slice);
        let after = chunks.partition_point(|(range, _)| range.start <= start);
        let chunk = after.checked_sub(1).and_then(|at| chunks.get(at));
        let chunk = chunk.filter(|(range, _)| range.contains(&start));
        Ok(BufReader::new(PageBytes {
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

impl Read for PageBytes {
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
            check(buffer, stated).map_err(io::Error::other)?;
        }
        self.at += len as u64;
        Ok(len)
    }
}

/// Pages up to here are decoded whatever their column states.
const SMALL_BYTES: u64 = 16 << 20;
const SMALL_VALUES: u64 = 1 << 16;

/// Sizes when uncompressed.
#[derive(Debug, Clone, Copy)]
struct Stated {
    bytes: u64,
    values: u64,
}

/// Refuses a page that is larger than the column that it belongs to, before it is decoded: a page of a few bytes may become any number of
/// nulls, or of bytes.
fn check(header: &[u8], column: Stated) -> Result<(), String> {
    let page = stated(header).ok_or("has a page header that is not understood")?;
    let (bytes, values) = (column.bytes, column.values);
    if page.bytes <= bytes.max(SMALL_BYTES) && page.values <= values.max(SMALL_VALUES) {
        return Ok(());
    }
    Err(format!(
        "has a page of {} bytes and {} values, and its column states {bytes} and {values} in all",
        page.bytes, page.values
    ))
}

/// Reads the beginning of a page's header in Thrift's compact protocol, as every writer has it: integers, of which the second is the
/// page's size, and then the header of the page's own kind, which begins with the number of values.
fn stated(mut header: &[u8]) -> Option<Stated> {
    const NEXT_INTEGER: u8 = 0x15;
    let mut integers = Vec::new();
    while let [NEXT_INTEGER, rest @ ..] = header {
        header = rest;
        integers.push(integer(&mut header)?);
    }
    let positive = |number: &i64| u64::try_from(*number).ok();
    match header {
        [kind, NEXT_INTEGER, rest @ ..] if kind & 0xF == 12 && kind >> 4 > 0 => {
            header = rest;
            Some(Stated {
                bytes: integers.get(1).and_then(positive)?,
                values: integer(&mut header).as_ref().and_then(positive)?,
            })
        }
        _ => None,
    }
}

/// Such as a size, or a checksum, which may be negative.
fn integer(bytes: &mut &[u8]) -> Option<i64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7F) << shift;
        if *byte < 0x80 {
            return Some((number >> 1) as i64 ^ -((number & 1) as i64));
        }
    }
    None
}
