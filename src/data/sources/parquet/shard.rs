use std::path::Path;

use bytesize::ByteSize;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::Type;

use super::source::ParquetFile;
use crate::data::caught;
use crate::error::DataError;

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
        let source = ParquetFile::open(path)?;
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
