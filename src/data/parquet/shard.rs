use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use bytesize::ByteSize;
use parquet::errors::Result;
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::Type;

use crate::data::caught;
use crate::error::DataError;
use crate::fixed_file::FixedFile;

/// One file, of which some columns are read.
pub(super) struct Shard {
    source: ParquetFile,
    reader: SerializedFileReader<ParquetFile>,
    /// Of the columns that are read.
    schema: Type,
}

impl Shard {
    /// Reads the metadata at the end of a file.
    pub fn open(path: &Path, columns: Option<&[String]>) -> Result<Self, DataError> {
        let file = FixedFile::open(path).map_err(|reason| DataError::io(path, None, reason))?;
        let source = ParquetFile {
            file: Arc::new(file),
            chunks: Arc::default(),
        };
        let reader = decode(path, None, || {
            let reader = SerializedFileReader::new(source.clone())?;
            source.check_pages(reader.metadata());
            Ok(reader)
        })?;
        let root = reader.metadata().file_metadata().schema();
        let find = |name: &String| {
            let mut fields = root.get_fields().iter();
            let field = fields.find(|field| field.name() == name).cloned();
            field.ok_or_else(|| {
                let names: Vec<_> = root.get_fields().iter().map(|field| field.name()).collect();
                let problem = format!("has no column `{name}`; it has {}", names.join(", "));
                DataError::file(path, None, problem)
            })
        };
        let fields = match columns {
            Some(columns) => columns.iter().map(find).collect::<Result<Vec<_>, _>>()?,
            None => root.get_fields().to_vec(),
        };
        let schema = Type::group_type_builder(root.name()).with_fields(fields);
        let schema = decode(path, None, || schema.build())?;
        Ok(Self {
            source,
            reader,
            schema,
        })
    }

    pub fn path(&self) -> &Path {
        self.source.file.path()
    }

    /// The number of rows in each row group. The decoder trusts them, so they are compared with the numbers of values.
    pub fn groups(&self) -> Result<Vec<usize>, DataError> {
        let groups = self.reader.metadata().row_groups().iter();
        let rows = groups.enumerate().map(|(index, group)| {
            let is_right = |rows: &usize| *rows == 0 || has_rows(group, *rows);
            let rows = usize::try_from(group.num_rows()).ok().filter(is_right);
            rows.ok_or_else(|| {
                let problem = format!(
                    "row group {index} states {} rows, its columns do not",
                    group.num_rows()
                );
                DataError::file(self.path(), None, problem)
            })
        });
        rows.collect()
    }

    /// About what the columns that are read take when they are decoded, by what the file states.
    fn decoded_bytes(&self, group: &RowGroupMetaData) -> u64 {
        let columns = group.columns().iter();
        let read = columns.filter(|column| {
            let name = column.column_path().parts().first();
            let mut fields = self.schema.get_fields().iter();
            name.is_some_and(|name| fields.any(|field| field.name() == name))
        });
        let bytes = read.map(|column| {
            let name = column.column_descr().name().len();
            let value = (size_of::<(String, Field)>() + name) as u64;
            let [values, bytes] = [column.num_values(), column.uncompressed_size()]
                .map(|number| u64::try_from(number).unwrap_or(u64::MAX));
            values.saturating_mul(value).saturating_add(bytes)
        });
        bytes.fold(0, u64::saturating_add)
    }

    /// Decodes a row group that takes at most so many bytes. Returns its rows, and about the bytes that they take.
    pub fn read(
        &self,
        index: usize,
        expected: usize,
        most: u64,
    ) -> Result<(Vec<Field>, u64), DataError> {
        let group = self.reader.metadata().row_groups().get(index);
        let offset = group.and_then(start);
        let bytes = group.map_or(0, |group| self.decoded_bytes(group));
        if bytes > most {
            let problem = format!(
                "row group {index} has {expected} rows, which take about {}, more than {}: raise `max_row_group`, read fewer columns, or \
                 write smaller row groups",
                ByteSize(bytes),
                ByteSize(most)
            );
            return Err(DataError::file(self.path(), offset, problem));
        }
        let rows: Vec<_> = decode(self.path(), offset, || {
            let group = self.reader.get_row_group(index)?;
            let rows = group.get_row_iter(Some(self.schema.clone()))?;
            rows.map(|row| row.map(Field::Group)).collect()
        })?;
        let check = self.source.file.check();
        check.map_err(|reason| DataError::io(self.path(), None, reason))?;
        if rows.len() != expected {
            let problem = format!("row group {index} has {} rows of {expected}", rows.len());
            return Err(DataError::file(self.path(), offset, problem));
        }
        Ok((rows, bytes))
    }
}

/// Whether each column has a value, or a null, for each row; a list may have any number.
fn has_rows(group: &RowGroupMetaData, rows: usize) -> bool {
    !group.columns().is_empty()
        && group.columns().iter().all(|column| {
            let values = usize::try_from(column.num_values()).unwrap_or(0);
            match column.column_descr().max_rep_level() {
                0 => values == rows,
                _ => values >= rows,
            }
        })
}

/// Where a row group starts.
fn start(group: &RowGroupMetaData) -> Option<u64> {
    let columns = group.columns().iter();
    let starts = columns.map(|column| {
        let data = column.data_page_offset();
        column
            .dictionary_page_offset()
            .map_or(data, |dictionary| dictionary.min(data))
    });
    u64::try_from(starts.min()?).ok()
}

/// Runs the crate `parquet`, which panics on some damaged files, and on columns that its rows cannot hold.
fn decode<T>(
    path: &Path,
    offset: Option<u64>,
    run: impl FnOnce() -> parquet::errors::Result<T>,
) -> Result<T, DataError> {
    let problem = match caught(run) {
        Ok(Ok(decoded)) => return Ok(decoded),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!("cannot be decoded: {panic}"),
    };
    Err(DataError::file(path, offset, problem))
}

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
        // A damaged file may state any length: reading compares it with the file's before it asks for memory.
        let end = start.saturating_add(length as u64);
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
