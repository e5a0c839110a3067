use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use bytesize::ByteSize;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use super::output::Sink;
use super::sample::{Health, NAMES, Sample, unix_milliseconds};
use super::source::Source;
use crate::error::{OutputError, Result};
use crate::output::LineFile;

/// Writes samples to a file, one a line: as comma-separated values or as JSON objects.
///
/// In CSV the first line names the columns and a value that is not known is empty; in JSON it is left out. An existing file is
/// appended to. A file has one writer: programs that run side by side need paths of their own.
///
/// Each line is written by one system call before the next sample is taken. If the process is killed within that call, or the
/// machine stops, the file can end in the beginning of a line; opening the file again removes it. All other lines are whole.
///
/// ```
/// use candle_headroom::{ByteSize, Monitor};
/// use candle_headroom::monitor::FileSink;
///
/// # let temporary = tempfile::tempdir().unwrap();
/// # let folder = temporary.path();
/// let monitor = Monitor::builder()
///     .sink(FileSink::csv(folder.join("samples.csv")).open()?)
///     .sink(FileSink::json_lines(folder.join("samples.jsonl")).rotate_at(ByteSize::mib(64)).open()?)
///     .start()?;
/// drop(monitor);
/// let text = std::fs::read_to_string(folder.join("samples.csv")).unwrap();
/// assert!(text.starts_with("taken_unix_ms,source,index,uuid,cuda,health,took_us,total_bytes,"));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
pub struct FileSink {
    options: FileSinkBuilder,
    file: LineFile,
}

/// How a sample becomes a line. The line's buffer is kept, so that a sample allocates nothing.
#[derive(Debug)]
enum Format {
    Csv(Box<csv::Writer<LastLine>>),
    JsonLines(Vec<u8>),
}

/// Options of a [`FileSink`]; from [`FileSink::csv`] or [`FileSink::json_lines`].
#[derive(Debug)]
#[must_use = "call `open()`"]
pub struct FileSinkBuilder {
    path: PathBuf,
    header: String,
    rotate_at: Option<u64>,
    format: Format,
    has_rank: bool,
}

impl FileSink {
    /// A file of comma-separated values.
    pub fn csv(path: impl Into<PathBuf>) -> FileSinkBuilder {
        let mut writer = csv::WriterBuilder::new();
        let writer = writer.has_headers(false).from_writer(LastLine::default());
        let names = NAMES.join(",");
        FileSinkBuilder {
            path: path.into(),
            header: format!("taken_unix_ms,source,index,uuid,cuda,health,took_us,{names}\n"),
            rotate_at: None,
            format: Format::Csv(Box::new(writer)),
            has_rank: false,
        }
    }

    /// A file of JSON objects.
    pub fn json_lines(path: impl Into<PathBuf>) -> FileSinkBuilder {
        FileSinkBuilder {
            path: path.into(),
            header: String::new(),
            rotate_at: None,
            format: Format::JsonLines(Vec::with_capacity(1024)),
            has_rank: false,
        }
    }
}

impl FileSinkBuilder {
    /// Starts a new file before one grows beyond `size`; the one before is kept with `.1` appended to its name. Unbounded by default.
    pub fn rotate_at(mut self, size: ByteSize) -> Self {
        self.rotate_at = Some(size.as_u64());
        self
    }

    /// Adds a last column `rank` to a file of comma-separated values, for the files of several ranks to be put together. JSON objects have it
    /// wherever the monitor knows its [group](super::MonitorBuilder::group).
    pub fn rank_column(mut self) -> Self {
        if !self.header.is_empty() && !self.has_rank {
            self.header.truncate(self.header.trim_end().len());
            self.header.push_str(",rank\n");
        }
        self.has_rank = true;
        self
    }

    /// Opens or creates the file.
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn open(self) -> Result<FileSink> {
        let file = LineFile::open(&self.path, self.header.clone(), self.rotate_at)
            .map_err(|error| OutputError::at(&self.path, &error))?;
        let options = self;
        Ok(FileSink { options, file })
    }
}

impl Sink for FileSink {
    fn write(&mut self, source: &Source, sample: &Sample) -> io::Result<()> {
        let FileSinkBuilder {
            path,
            format,
            has_rank,
            ..
        } = &mut self.options;
        let line: &[u8] = match format {
            Format::Csv(writer) => {
                let columns = Columns::All {
                    has_rank: *has_rank,
                };
                writer.serialize(SampleLine(source, sample, columns))?;
                writer.flush()?;
                &writer.get_ref().0
            }
            Format::JsonLines(line) => {
                line.clear();
                serde_json::to_writer(&mut *line, &SampleLine(source, sample, Columns::Known))?;
                line.push(b'\n');
                line
            }
        };
        let written = self.file.append(line);
        written.map_err(|error| io::Error::new(error.kind(), OutputError::at(path, &error)))
    }
}

/// Keeps what a `csv::Writer` flushed last.
#[derive(Debug, Default)]
struct LastLine(Vec<u8>);

impl Write for LastLine {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.clear();
        self.0.extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Which values are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Columns {
    Known,
    All { has_rank: bool },
}

/// A sample as a line of a file. Serializing allocates nothing.
struct SampleLine<'a>(&'a Source, &'a Sample, Columns);

impl Serialize for SampleLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(source, sample, columns) = self;
        let keeps_unknown = *columns != Columns::Known;
        let has_rank = match columns {
            Columns::Known => source.rank.is_some(),
            Columns::All { has_rank } => *has_rank,
        };
        let mut line = serializer.serialize_struct("SampleLine", 8 + NAMES.len())?;
        line.serialize_field("taken_unix_ms", &unix_milliseconds(sample.taken))?;
        line.serialize_field("source", &source.name)?;
        line.serialize_field("index", &sample.source)?;
        if keeps_unknown || source.uuid.is_some() {
            line.serialize_field("uuid", &source.uuid)?;
        }
        if keeps_unknown || source.cuda.is_some() {
            line.serialize_field("cuda", &source.cuda)?;
        }
        line.serialize_field("health", &sample.health)?;
        line.serialize_field("took_us", &(sample.took.as_micros() as u64))?;
        for (name, value) in NAMES.into_iter().zip(sample.values()) {
            if keeps_unknown || value.is_some() {
                line.serialize_field(name, &value)?;
            }
        }
        if has_rank {
            line.serialize_field("rank", &source.rank)?;
        }
        line.end()
    }
}

/// A sample that was read back from a line of JSON.
///
/// ```
/// use candle_headroom::monitor::{Health, SampleRecord};
///
/// let line = r#"{"taken_unix_ms":0,"source":"host","index":0,"health":"good","took_us":7,"used_bytes":42}"#;
/// let sample: SampleRecord = serde_json::from_str(line).unwrap();
/// assert_eq!((sample.health, sample.values["used_bytes"]), (Health::Good, 42));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SampleRecord {
    /// When it was taken, in milliseconds since 1970.
    pub taken_unix_ms: u64,
    /// The name of its [`Source`].
    pub source: String,
    /// The index of its source.
    pub index: usize,
    /// The GPU's UUID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The GPU's CUDA ordinal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda: Option<usize>,
    /// The rank that took it, if several train together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    /// Whether the source answered.
    pub health: Health,
    /// How long taking it took, in microseconds.
    pub took_us: u64,
    /// The known values by their names, which are those of a [`FileSink`](super::FileSink)'s columns.
    #[serde(flatten)]
    pub values: BTreeMap<String, u64>,
}

impl SampleRecord {
    pub(super) fn of(source: &Source, sample: &Sample) -> serde_json::Result<Self> {
        serde_json::from_value(serde_json::to_value(SampleLine(
            source,
            sample,
            Columns::Known,
        ))?)
    }
}
