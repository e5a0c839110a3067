use std::io::{self, Write};
use std::path::PathBuf;

use bytesize::ByteSize;

use super::line::SampleLine;
use super::output::Sink;
use super::sample::{NAMES, Sample};
use super::source::Source;
use crate::error::{OutputError, Result};
use crate::output::LineFile;

/// The columns of a CSV file before those of the values.
const COLUMNS: &str = "taken_unix_ms,source,index,uuid,cuda,health,took_us";

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
/// # let folder = std::env::temp_dir().join(format!("file-sink-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// let monitor = Monitor::builder()
///     .sink(FileSink::csv(folder.join("samples.csv")).open()?)
///     .sink(FileSink::json_lines(folder.join("samples.jsonl")).rotate_at(ByteSize::mib(64)).open()?)
///     .start()?;
/// drop(monitor);
/// let text = std::fs::read_to_string(folder.join("samples.csv")).unwrap();
/// assert!(text.starts_with("taken_unix_ms,source,index,uuid,cuda,health,took_us,total_bytes,"));
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
pub struct FileSink {
    path: PathBuf,
    file: LineFile,
    format: Format,
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
    rotate_at: Option<ByteSize>,
    format: Format,
}

impl FileSink {
    /// A file of comma-separated values.
    pub fn csv(path: impl Into<PathBuf>) -> FileSinkBuilder {
        let mut writer = csv::WriterBuilder::new();
        let writer = writer.has_headers(false).from_writer(LastLine::default());
        FileSinkBuilder {
            path: path.into(),
            header: format!("{COLUMNS},{}\n", NAMES.join(",")),
            rotate_at: None,
            format: Format::Csv(Box::new(writer)),
        }
    }

    /// A file of JSON objects.
    pub fn json_lines(path: impl Into<PathBuf>) -> FileSinkBuilder {
        FileSinkBuilder {
            path: path.into(),
            header: String::new(),
            rotate_at: None,
            format: Format::JsonLines(Vec::with_capacity(1024)),
        }
    }
}

impl FileSinkBuilder {
    /// Starts a new file before one grows beyond `size`, and keeps the one before under the same name with `.1` appended. Unbounded
    /// by default.
    pub fn rotate_at(mut self, size: ByteSize) -> Self {
        self.rotate_at = Some(size);
        self
    }

    /// Opens or creates the file.
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn open(self) -> Result<FileSink> {
        let rotate_at = self.rotate_at.map(|size| size.as_u64());
        let file = LineFile::open(&self.path, self.header, rotate_at)
            .map_err(|error| OutputError::at(&self.path, &error))?;
        Ok(FileSink {
            path: self.path,
            file,
            format: self.format,
        })
    }
}

impl Sink for FileSink {
    fn write(&mut self, source: &Source, sample: &Sample) -> io::Result<()> {
        let line: &[u8] = match &mut self.format {
            Format::Csv(writer) => {
                writer.serialize((
                    sample.unix_milliseconds(),
                    &source.name,
                    sample.source,
                    &source.uuid,
                    source.cuda,
                    sample.health,
                    sample.microseconds(),
                    sample.values(),
                ))?;
                writer.flush()?;
                &writer.get_ref().0
            }
            Format::JsonLines(line) => {
                line.clear();
                serde_json::to_writer(&mut *line, &SampleLine(source, sample))?;
                line.push(b'\n');
                line
            }
        };
        let written = self.file.append(line);
        written.map_err(|error| io::Error::new(error.kind(), OutputError::at(&self.path, &error)))
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
