use std::fmt::Write;
use std::io;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use super::{Sample, Sink, Source};
use crate::error::{OutputError, Result};
use crate::output::LineFile;

/// Samples as comma-separated values, one a line, each written at once: a process that is killed leaves whole lines.
///
/// The first line names the columns. What is not known is empty. A file that is there already is gone on with.
///
/// ```
/// use candle_headroom::{CsvSink, Monitor};
///
/// # let path = std::env::temp_dir().join(format!("samples-{}.csv", std::process::id()));
/// let monitor = Monitor::builder().sink(CsvSink::open(&path)?).start()?;
/// drop(monitor);
/// let text = std::fs::read_to_string(&path).unwrap();
/// assert!(text.starts_with("taken_unix_ms,source,index,uuid,cuda,health,took_us,total_bytes,"));
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
pub struct CsvSink {
    file: LineFile,
    /// Used again for each line.
    line: String,
}

impl CsvSink {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut file = LineFile::open(path, None).map_err(|error| OutputError::at(path, &error))?;
        if file.is_empty() {
            let mut header = "taken_unix_ms,source,index,uuid,cuda,health,took_us".to_owned();
            for (name, _) in Sample::blank(0, UNIX_EPOCH, Duration::ZERO).values() {
                header.push(',');
                header.push_str(name);
            }
            header.push('\n');
            let written = file.append(header.as_bytes());
            written.map_err(|error| OutputError::at(path, &error))?;
        }
        let line = String::with_capacity(512);
        Ok(Self { file, line })
    }
}

impl Sink for CsvSink {
    fn write(&mut self, source: &Source, sample: &Sample) -> io::Result<()> {
        let line = &mut self.line;
        line.clear();
        // Writing into a string does not fail.
        let _ = write!(line, "{},\"", sample.unix_milliseconds());
        source.name.chars().for_each(|c| match c {
            '"' => line.push_str("\"\""),
            c => line.push(c),
        });
        let _ = write!(line, "\",{},", sample.source);
        line.push_str(source.uuid.as_deref().unwrap_or_default());
        let _ = match source.cuda {
            Some(ordinal) => write!(line, ",{ordinal}"),
            None => write!(line, ","),
        };
        let _ = write!(line, ",{},{}", sample.health, sample.took.as_micros());
        for (_, value) in sample.values() {
            let _ = match value {
                Some(value) => write!(line, ",{value}"),
                None => write!(line, ","),
            };
        }
        line.push('\n');
        self.file.append(line.as_bytes())
    }
}
