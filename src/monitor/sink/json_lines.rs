use std::fmt::Write;
use std::io;
use std::path::Path;

use bytesize::ByteSize;

use super::{Sample, Sink, Source};
use crate::error::{OutputError, Result};
use crate::output::LineFile;

/// Samples as JSON, one object a line, each written at once: a process that is killed leaves whole lines. What is not known is
/// left out.
///
/// ```
/// use candle_headroom::{JsonLinesSink, Monitor};
///
/// # let path = std::env::temp_dir().join(format!("samples-{}.jsonl", std::process::id()));
/// let monitor = Monitor::builder().sink(JsonLinesSink::open(&path)?).start()?;
/// drop(monitor);
/// let text = std::fs::read_to_string(&path).unwrap();
/// let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
/// assert!(first["took_us"].is_u64());
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
pub struct JsonLinesSink {
    file: LineFile,
    /// Used again for each line.
    line: String,
}

impl JsonLinesSink {
    /// Opens or creates the file; a file that is there already is gone on with.
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::with(path.as_ref(), None)
    }

    /// The same, with a new file begun before one would grow beyond `most`; the one before is kept under the same name with `.1` at
    /// its end, so that both together take twice as much at most.
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn rotating(path: impl AsRef<Path>, most: ByteSize) -> Result<Self> {
        Self::with(path.as_ref(), Some(most.as_u64()))
    }

    fn with(path: &Path, most: Option<u64>) -> Result<Self> {
        let file = LineFile::open(path, most).map_err(|error| OutputError::at(path, &error))?;
        let line = String::with_capacity(1024);
        Ok(Self { file, line })
    }
}

impl Sink for JsonLinesSink {
    fn write(&mut self, source: &Source, sample: &Sample) -> io::Result<()> {
        self.line.clear();
        write_object(&mut self.line, source, sample);
        self.line.push('\n');
        self.file.append(self.line.as_bytes())
    }
}

/// Appends the sample as a JSON object. By hand rather than through a `Value`, which would allocate for every name.
pub(crate) fn write_object(line: &mut String, source: &Source, sample: &Sample) {
    // Writing into a string does not fail.
    let _ = write!(
        line,
        "{{\"taken_unix_ms\":{},\"source\":\"",
        sample.unix_milliseconds()
    );
    source.name.chars().for_each(|c| match c {
        '"' | '\\' => line.extend(['\\', c]),
        c if c.is_control() => line.push(' '),
        c => line.push(c),
    });
    let _ = write!(line, "\",\"index\":{}", sample.source);
    if let Some(uuid) = &source.uuid {
        let _ = write!(line, ",\"uuid\":\"{uuid}\"");
    }
    if let Some(ordinal) = source.cuda {
        let _ = write!(line, ",\"cuda\":{ordinal}");
    }
    let _ = write!(
        line,
        ",\"health\":\"{}\",\"took_us\":{}",
        sample.health,
        sample.took.as_micros()
    );
    for (name, value) in sample.values() {
        if let Some(value) = value {
            let _ = write!(line, ",\"{name}\":{value}");
        }
    }
    line.push('}');
}
