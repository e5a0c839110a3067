//! Parquet files, as the Hugging Face hub serves data.

mod shard;
mod value;

use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytesize::ByteSize;
use parquet::record::Field;
use serde::de::DeserializeOwned;

use crate::data::cache::Cache;
use crate::data::dataset::{Dataset, out_of_range};
use crate::data::name_of;
use crate::error::{BoxedError, DataError, Result, invalid};
use shard::Shard;
use value::Value;

/// Parquet files, one after the other: a sample is a row.
///
/// A row becomes any type that serde can read. A struct takes the columns of its fields' names, and a tuple all columns in the
/// order of [`columns`](ParquetBuilder::columns) or of the file. A column of bytes, such as the images of the Hugging Face hub,
/// becomes a `Vec<u8>`, a list a `Vec`, a null `None`, a date the days and a time the milliseconds or microseconds since 1970,
/// and a decimal a string. Files compressed with Snappy, Zstandard or gzip can be read.
///
/// A file is divided into row groups, and a row group is decoded as a whole when the first of its rows is read. Those used last
/// are kept, up to [`cache`](ParquetBuilder::cache) bytes, but at least one. Several threads decode different row groups at once, and one that
/// needs a group that another one is decoding waits for it. Rows in the order of the file decode each group once, and so do rows that are
/// [shuffled by blocks](super::LoaderBuilder::blocks), which are row groups here, if the cache holds those of a window. Where all rows are shuffled
/// and the decoded groups do not all fit, most rows decode a group of their own: then shuffle by blocks, raise the limit, or read fewer
/// [`columns`](ParquetBuilder::columns).
///
/// On some damaged files the decoder panics. That is caught and returned as an error, after the program's panic hook has run.
///
/// ```
/// use candle_headroom::data::{Dataset, ParquetDataset};
/// # use parquet::data_type::{ByteArrayType, Int32Type};
/// # use parquet::{file::writer::SerializedFileWriter, schema::parser::parse_message_type};
///
/// #[derive(serde::Deserialize)]
/// struct Review {
///     text: String,
///     stars: Option<u32>,
/// }
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("train-00000-of-00001.parquet");
/// # let schema = parse_message_type("message m { required binary text (UTF8); optional int32 stars; }")?;
/// # let mut file = SerializedFileWriter::new(std::fs::File::create(&path)?, schema.into(), Default::default())?;
/// # let mut group = file.next_row_group()?;
/// # let mut column = group.next_column()?.unwrap();
/// # column.typed::<ByteArrayType>().write_batch(&["Fine.".into(), "No!".into()], None, None)?;
/// # column.close()?;
/// # let mut column = group.next_column()?.unwrap();
/// # column.typed::<Int32Type>().write_batch(&[4], Some(&[1, 0]), None)?;
/// # column.close()?;
/// # group.close()?;
/// # file.close()?;
/// // … written by another program: two reviews, the second without stars.
/// let reviews = ParquetDataset::<Review>::builder([&path]).columns(["text", "stars"]).open()?;
/// let review = reviews.get(1)?;
/// assert_eq!((review.text.as_str(), review.stars), ("No!", None));
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct ParquetDataset<T> {
    shards: Vec<Shard>,
    groups: Vec<RowGroup>,
    len: usize,
    cache: Cache<usize, Vec<Field>>,
    max_row_group: u64,
    sample: PhantomData<fn() -> T>,
}

/// A row group that is not empty.
#[derive(Debug)]
struct RowGroup {
    shard: usize,
    /// Its number in the file.
    number: usize,
    /// The number of the rows before it, in all files.
    first: usize,
    rows: usize,
}

/// Settings of [`ParquetDataset`], from [`ParquetDataset::builder`].
///
/// ```
/// # use candle_headroom::ByteSize;
/// # use candle_headroom::data::{Dataset, ParquetDataset};
/// # use parquet::data_type::Int32Type;
/// # use parquet::{file::writer::SerializedFileWriter, schema::parser::parse_message_type};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("train.parquet");
/// # let schema = parse_message_type("message m { required int32 stars; }")?;
/// # let mut file = SerializedFileWriter::new(std::fs::File::create(&path)?, schema.into(), Default::default())?;
/// # let mut group = file.next_row_group()?;
/// # let mut column = group.next_column()?.unwrap();
/// # column.typed::<Int32Type>().write_batch(&[4, 5], None, None)?;
/// # column.close()?;
/// # group.close()?;
/// # file.close()?;
/// // A file with two rows of one column, `stars`.
/// let builder = ParquetDataset::<(u32,)>::builder([&path]).columns(["stars"]);
/// let rows = builder.cache(ByteSize::gib(1)).open()?;
/// assert_eq!(rows.get(1)?, (5,));
/// # Ok::<(), candle_headroom::error::BoxedError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct ParquetBuilder<T> {
    paths: Vec<PathBuf>,
    columns: Option<Vec<String>>,
    cache: ByteSize,
    max_row_group: ByteSize,
    sample: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned + Send> ParquetDataset<T> {
    /// Describes files, whose rows follow each other in this order.
    ///
    /// ```
    /// # use candle_headroom::data::{Dataset, ParquetDataset};
    /// # use parquet::data_type::Int32Type;
    /// # use parquet::{file::writer::SerializedFileWriter, schema::parser::parse_message_type};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("train.parquet");
    /// # let schema = parse_message_type("message m { required int32 stars; }")?;
    /// # let mut file = SerializedFileWriter::new(std::fs::File::create(&path)?, schema.into(), Default::default())?;
    /// # let mut group = file.next_row_group()?;
    /// # let mut column = group.next_column()?.unwrap();
    /// # column.typed::<Int32Type>().write_batch(&[4, 5], None, None)?;
    /// # column.close()?;
    /// # group.close()?;
    /// # file.close()?;
    /// // A file with two rows of one column, read twice.
    /// let rows = ParquetDataset::<(u32,)>::builder([&path, &path]).open()?;
    /// assert_eq!((rows.len(), rows.get(2)?), (4, (4,)));
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// One path stands in brackets as well.
    pub fn builder<P: AsRef<Path>>(paths: impl AsRef<[P]>) -> ParquetBuilder<T> {
        let paths = paths.as_ref().iter().map(|path| path.as_ref().to_owned());
        ParquetBuilder {
            paths: paths.collect(),
            columns: None,
            cache: ByteSize::mib(256),
            max_row_group: ByteSize::gib(4),
            sample: PhantomData,
        }
    }

    /// Decodes the row group of a row.
    fn rows(&self, index: usize) -> Result<(&Shard, Arc<Vec<Field>>, usize), BoxedError> {
        let number = self.groups.partition_point(|group| group.first <= index);
        let at = number.checked_sub(1).filter(|_| index < self.len);
        let found = at.and_then(|at| {
            let group = self.groups.get(at)?;
            Some((at, group, self.shards.get(group.shard)?))
        });
        let (at, group, shard) = found.ok_or_else(|| out_of_range(self, index))?;
        let read = || shard.read(group.number, group.rows, self.max_row_group);
        let rows = self.cache.get(at, read)?;
        Ok((shard, rows, index - group.first))
    }
}

impl<T: DeserializeOwned + Send> ParquetBuilder<T> {
    /// Reads only these columns, in this order for a tuple; by default all, in the order of the file. Other columns are not decoded.
    ///
    /// ```
    /// # use candle_headroom::data::ParquetDataset;
    /// # use parquet::data_type::Int32Type;
    /// # use parquet::{file::writer::SerializedFileWriter, schema::parser::parse_message_type};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("train.parquet");
    /// # let schema = parse_message_type("message m { required int32 stars; }")?;
    /// # let mut file = SerializedFileWriter::new(std::fs::File::create(&path)?, schema.into(), Default::default())?;
    /// # let mut group = file.next_row_group()?;
    /// # let mut column = group.next_column()?.unwrap();
    /// # column.typed::<Int32Type>().write_batch(&[4, 5], None, None)?;
    /// # column.close()?;
    /// # group.close()?;
    /// # file.close()?;
    /// // A file with one column, `stars`.
    /// let error = ParquetDataset::<(u32,)>::builder([&path]).columns(["rating"]).open().unwrap_err();
    /// assert!(error.to_string().ends_with("has no column `rating`; it has stars"), "{error}");
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn columns<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.columns = Some(names.into_iter().map(S::into).collect());
        self
    }

    /// Sets how many bytes of decoded rows are cached, as estimated from the file's metadata; 256 MiB by default. It should hold one row group
    /// for each thread of a loader, or, for rows that are [shuffled by blocks](crate::data::LoaderBuilder::blocks), those of two windows: threads
    /// that read ahead are in the next one already.
    ///
    /// ```
    /// # use candle_headroom::ByteSize;
    /// # use candle_headroom::data::{Dataset, ParquetDataset};
    /// # use parquet::data_type::Int32Type;
    /// # use parquet::{file::writer::SerializedFileWriter, schema::parser::parse_message_type};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("train.parquet");
    /// # let schema = parse_message_type("message m { required int32 stars; }")?;
    /// # let mut file = SerializedFileWriter::new(std::fs::File::create(&path)?, schema.into(), Default::default())?;
    /// # let mut group = file.next_row_group()?;
    /// # let mut column = group.next_column()?.unwrap();
    /// # column.typed::<Int32Type>().write_batch(&[4, 5], None, None)?;
    /// # column.close()?;
    /// # group.close()?;
    /// # file.close()?;
    /// // The row group that was read last stays in any case.
    /// let rows = ParquetDataset::<(u32,)>::builder([&path]).cache(ByteSize(0)).open()?;
    /// assert_eq!([rows.get(0)?, rows.get(1)?], [(4,), (5,)]);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn cache(mut self, room: ByteSize) -> Self {
        self.cache = room;
        self
    }

    /// Sets how many bytes the selected columns of a row group may take when they are decoded, as estimated from the file's metadata; 4 GiB by
    /// default. Reading a row of a larger group is an error. It protects against small files that state a huge number of nulls.
    ///
    /// ```
    /// # use candle_headroom::ByteSize;
    /// # use candle_headroom::data::{Dataset, ParquetDataset};
    /// # use parquet::data_type::Int32Type;
    /// # use parquet::{file::writer::SerializedFileWriter, schema::parser::parse_message_type};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("train.parquet");
    /// # let schema = parse_message_type("message m { required int32 stars; }")?;
    /// # let mut file = SerializedFileWriter::new(std::fs::File::create(&path)?, schema.into(), Default::default())?;
    /// # let mut group = file.next_row_group()?;
    /// # let mut column = group.next_column()?.unwrap();
    /// # column.typed::<Int32Type>().write_batch(&[4, 5], None, None)?;
    /// # column.close()?;
    /// # group.close()?;
    /// # file.close()?;
    /// let rows = ParquetDataset::<(u32,)>::builder([&path]).max_row_group(ByteSize(1)).open()?;
    /// let error = rows.get(0).unwrap_err();
    /// assert!(error.to_string().contains("raise `max_row_group`"), "{error}");
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn max_row_group(mut self, most: ByteSize) -> Self {
        self.max_row_group = most;
        self
    }

    /// Opens the files and reads their metadata.
    ///
    /// ```
    /// use candle_headroom::data::ParquetDataset;
    ///
    /// let error = ParquetDataset::<(u32,)>::builder(Vec::<String>::new()).open().unwrap_err();
    /// assert!(error.is_data());
    /// assert_eq!(error.to_string(), "a Parquet dataset needs at least one file and one column");
    /// ```
    ///
    /// # Errors
    /// [`DataError::File`] if a file cannot be read, is no Parquet file, is damaged or lacks a column, and an [error of
    /// data](crate::Error::is_data) if there is no file or no column.
    pub fn open(self) -> Result<ParquetDataset<T>> {
        if self.paths.is_empty() || self.columns.as_ref().is_some_and(Vec::is_empty) {
            return Err(invalid!(
                Data,
                "a Parquet dataset needs at least one file and one column"
            ));
        }
        let (mut shards, mut groups, mut len) = (Vec::new(), Vec::new(), 0usize);
        for path in &self.paths {
            let shard = Shard::open(path, self.columns.as_deref())?;
            for (number, rows) in shard.groups()?.into_iter().enumerate() {
                let first = len;
                let too_many = || DataError::file(path, None, "has more rows than can be counted");
                len = len.checked_add(rows).ok_or_else(too_many)?;
                if rows > 0 {
                    groups.push(RowGroup {
                        shard: shards.len(),
                        number,
                        first,
                        rows,
                    });
                }
            }
            shards.push(shard);
        }
        Ok(ParquetDataset {
            shards,
            groups,
            len,
            cache: Cache::new(self.cache.as_u64()),
            max_row_group: self.max_row_group.as_u64(),
            sample: PhantomData,
        })
    }
}

impl<T: DeserializeOwned + Send> Dataset for ParquetDataset<T> {
    type Sample = T;

    fn len(&self) -> usize {
        self.len
    }

    /// Reads a row.
    ///
    /// # Errors
    /// [`DataError::File`] if the row group cannot be decoded or is larger than [`max_row_group`](ParquetBuilder::max_row_group), with
    /// its offset, if the file has changed since it was opened, or if the row is no such value; and another one for an index out of
    /// range.
    fn get(&self, index: usize) -> Result<T, BoxedError> {
        let (shard, rows, within) = self.rows(index)?;
        let row = rows.get(within).ok_or_else(|| out_of_range(self, index))?;
        let wrong = |error| {
            let problem = format!("row {index} of the dataset: {error}");
            DataError::file(shard.path(), None, problem)
        };
        Ok(T::deserialize(Value(row)).map_err(wrong)?)
    }

    fn name(&self) -> String {
        name_of(self.shards.iter().map(Shard::path))
    }

    /// Returns where the row groups end.
    fn blocks(&self) -> Vec<usize> {
        let groups = self.groups.iter();
        groups.map(|group| group.first + group.rows).collect()
    }
}

impl<T> fmt::Debug for ParquetDataset<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: Vec<_> = self.shards.iter().map(Shard::path).collect();
        let mut dataset = f.debug_struct("ParquetDataset");
        dataset.field("files", &files).field("len", &self.len);
        dataset.finish_non_exhaustive()
    }
}
