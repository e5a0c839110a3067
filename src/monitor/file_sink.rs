use std::cell::RefCell;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use bytesize::ByteSize;

use super::line::SampleLine;
use super::sample::Sample;
use super::sink::Sink;
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
pub struct FileSink(Format);

#[derive(Debug)]
enum Format {
    Csv(Box<csv::Writer<CsvFile>>),
    JsonLines(LineFile, Vec<u8>),
}

/// Options of a [`FileSink`]; from [`FileSink::csv`] or [`FileSink::json_lines`].
#[derive(Debug, Clone)]
#[must_use = "call `open()`"]
pub struct FileSinkBuilder {
    path: PathBuf,
    is_csv: bool,
    rotate_at: Option<ByteSize>,
}

impl FileSink {
    /// A file of comma-separated values.
    pub fn csv(path: impl Into<PathBuf>) -> FileSinkBuilder {
        FileSinkBuilder {
            path: path.into(),
            is_csv: true,
            rotate_at: None,
        }
    }

    /// A file of JSON objects.
    pub fn json_lines(path: impl Into<PathBuf>) -> FileSinkBuilder {
        FileSinkBuilder {
            is_csv: false,
            ..Self::csv(path)
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
        let mut header = String::new();
        if self.is_csv {
            let values = Sample::blank(0, UNIX_EPOCH, Duration::ZERO).values();
            let names = values.map(|(name, _)| name).join(",");
            header = format!("taken_unix_ms,source,index,uuid,cuda,health,took_us,{names}\n");
        }
        let rotate_at = self.rotate_at.map(|size| size.as_u64());
        let file = LineFile::open(&self.path, header, rotate_at)
            .map_err(|error| OutputError::at(&self.path, &error))?;
        Ok(FileSink(match self.is_csv {
            true => Format::Csv(Box::new(
                csv::WriterBuilder::new()
                    .has_headers(false)
                    .from_writer(CsvFile {
                        file,
                        failure: RefCell::new(None),
                    }),
            )),
            false => Format::JsonLines(file, Vec::with_capacity(1024)),
        }))
    }
}

impl Sink for FileSink {
    fn write(&mut self, source: &Source, sample: &Sample) -> io::Result<()> {
        match &mut self.0 {
            Format::Csv(writer) => {
                writer.serialize((
                    sample.unix_milliseconds(),
                    &source.name,
                    sample.source,
                    &source.uuid,
                    source.cuda,
                    sample.health,
                    sample.microseconds(),
                    sample.values().map(|(_, value)| value),
                ))?;
                writer.flush()?;
                writer.get_ref().failure.take().map_or(Ok(()), Err)
            }
            Format::JsonLines(file, line) => {
                line.clear();
                serde_json::to_writer(&mut *line, &SampleLine(source, sample))?;
                line.push(b'\n');
                file.append(line)
            }
        }
    }
}

/// Receives a whole line with each flush. A failure is kept aside, because `csv::Writer` would write a failed line again.
#[derive(Debug)]
struct CsvFile {
    file: LineFile,
    failure: RefCell<Option<io::Error>>,
}

impl Write for CsvFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        *self.failure.get_mut() = self.file.append(line).err();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
