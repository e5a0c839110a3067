use std::collections::BTreeMap;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Weak;
use std::{fmt, mem};

use bytesize::ByteSize;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize, Serializer};

use super::sample::{Health, NAMES, Sample, unix_milliseconds};
use super::source::Source;
use crate::error::{OutputError, Result};
use crate::output::LineFile;

/// Writes samples somewhere, on the monitor's thread.
///
/// ```
/// use std::io;
/// use candle_headroom::Monitor;
/// use candle_headroom::monitor::{Sample, Sink, Source};
///
/// struct Printed;
///
/// impl Sink for Printed {
///     fn write(&mut self, source: &Source, sample: &Sample) -> io::Result<()> {
///         println!("{source}: {sample}");
///         Ok(())
///     }
/// }
///
/// let monitor = Monitor::builder().sink(Printed).start()?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub trait Sink: Send {
    /// Writes one sample.
    ///
    /// # Errors
    /// Any reason why the sample cannot be written. The monitor logs the first failure in a row with `tracing`, counts each in
    /// [`Monitor::failed_writes`](super::Monitor::failed_writes), and goes on with the next sample. A sink that panics is dropped;
    /// every further sample counts as failed.
    fn write(&mut self, source: &Source, sample: &Sample) -> io::Result<()>;
}

const _: Option<&dyn Sink> = None; // object-safe

type Receiver = dyn FnMut(&Source, &Sample) -> io::Result<()> + Send;

/// A sink, a threshold's callback or a listener. If it panics, it is dropped, and the monitor goes on.
pub(super) struct Output {
    /// `None` after a panic.
    receiver: Option<Box<Receiver>>,
    is_failing: bool,
    /// Alive as long as a listener's subscription; `None` for sinks and thresholds.
    subscription: Option<Weak<()>>,
}

impl Output {
    pub(super) fn new(
        receiver: impl FnMut(&Source, &Sample) -> io::Result<()> + Send + 'static,
        subscription: Option<Weak<()>>,
    ) -> Self {
        Self {
            receiver: Some(Box::new(receiver)),
            is_failing: false,
            subscription,
        }
    }

    /// Hands a sample on. Returns whether it was received without an error.
    fn send(&mut self, source: &Source, sample: &Sample) -> bool {
        let Some(receiver) = &mut self.receiver else {
            return false;
        };
        // Unwind safety: after a panic nothing but its destructor sees the receiver's state.
        let received = catch_unwind(AssertUnwindSafe(|| receiver(source, sample)));
        let was_failing = mem::replace(&mut self.is_failing, !matches!(received, Ok(Ok(()))));
        match received {
            Ok(Err(error)) if !was_failing => tracing::warn!(%error, "samples cannot be written"),
            Ok(_) => {}
            Err(_) => {
                tracing::error!("a sink or callback of the monitor panicked and is dropped");
                let dropped = self.receiver.take();
                let _ = catch_unwind(AssertUnwindSafe(|| drop(dropped)));
            }
        }
        !self.is_failing
    }
}

/// Hands a sample to all outputs and drops those whose subscription has ended. Returns how many did not receive it.
pub(super) fn send(outputs: &Mutex<Vec<Output>>, source: &Source, sample: &Sample) -> u64 {
    // Taken out of the mutex, so that a listener may subscribe others.
    let mut list = mem::take(&mut *outputs.lock());
    let mut failed = 0;
    list.retain_mut(|output| {
        let subscription = output.subscription.as_ref();
        let is_wanted = subscription.is_none_or(|token| token.strong_count() > 0);
        if is_wanted && !output.send(source, sample) {
            failed += 1;
        }
        is_wanted
    });
    let mut added = outputs.lock();
    list.append(&mut added);
    *added = list;
    failed
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").finish_non_exhaustive()
    }
}

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
    /// Kept, so that a sample allocates nothing.
    line: Vec<u8>,
}

/// Options of a [`FileSink`]; from [`FileSink::csv`] or [`FileSink::json_lines`].
#[derive(Debug)]
#[must_use = "call `open()`"]
pub struct FileSinkBuilder {
    path: PathBuf,
    rotate_at: Option<u64>,
    is_csv: bool,
}

impl FileSink {
    /// A file of comma-separated values. The last column is the rank, empty outside of a [group](super::MonitorBuilder::group).
    pub fn csv(path: impl Into<PathBuf>) -> FileSinkBuilder {
        FileSinkBuilder {
            path: path.into(),
            rotate_at: None,
            is_csv: true,
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
    /// Starts a new file before one grows beyond `size`; the one before is kept with `.1` appended to its name. Unbounded by default.
    pub fn rotate_at(mut self, size: ByteSize) -> Self {
        self.rotate_at = Some(size.as_u64());
        self
    }

    /// Opens or creates the file.
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn open(self) -> Result<FileSink> {
        let names = NAMES.join(",");
        let header = match self.is_csv {
            true => format!("taken_unix_ms,source,index,uuid,cuda,health,took_us,{names},{LAST}\n"),
            false => String::new(),
        };
        let file = LineFile::open(&self.path, header, self.rotate_at);
        Ok(FileSink {
            file: file.map_err(|error| OutputError::at(&self.path, &error))?,
            line: Vec::with_capacity(1024),
            options: self,
        })
    }
}

impl Sink for FileSink {
    fn write(&mut self, source: &Source, sample: &Sample) -> io::Result<()> {
        let Self {
            options,
            file,
            line,
        } = self;
        line.clear();
        let columns = columns(source, sample);
        if options.is_csv {
            for (name, value) in columns {
                if let Some(value) = value {
                    value.write_csv(line)?;
                }
                line.push(if name == LAST { b'\n' } else { b',' });
            }
        } else {
            let known = columns.filter_map(|(name, value)| Some((name, value?)));
            serde_json::Serializer::new(&mut *line).collect_map(known)?;
            line.push(b'\n');
        }
        let written = file.append(line);
        written
            .map_err(|error| io::Error::new(error.kind(), OutputError::at(&options.path, &error)))
    }
}

/// A value of a line.
#[derive(Serialize)]
#[serde(untagged)]
enum Value<'a> {
    Number(u64),
    Text(&'a str),
}

impl Value<'_> {
    fn write_csv(&self, line: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Self::Number(number) => write!(line, "{number}"),
            Self::Text(text) if text.contains([',', '"', '\r', '\n']) => {
                write!(line, "\"{}\"", text.replace('"', "\"\""))
            }
            Self::Text(text) => line.write_all(text.as_bytes()),
        }
    }
}

/// The name of the last column.
const LAST: &str = "rank";

/// The columns of a sample, of which unknown values are `None`.
fn columns<'a>(
    source: &'a Source,
    sample: &'a Sample,
) -> impl Iterator<Item = (&'static str, Option<Value<'a>>)> {
    let index = |index: usize| Value::Number(index as u64);
    let taken = unix_milliseconds(sample.taken);
    let took = sample.took.as_micros() as u64;
    let first = [
        ("taken_unix_ms", Some(Value::Number(taken))),
        ("source", Some(Value::Text(&source.name))),
        ("index", Some(index(sample.source))),
        ("uuid", source.uuid.as_deref().map(Value::Text)),
        ("cuda", source.cuda.map(index)),
        ("health", Some(Value::Text(sample.health.id()))),
        ("took_us", Some(Value::Number(took))),
    ];
    let values = NAMES.into_iter().zip(sample.values());
    let values = values.map(|(name, value)| (name, value.map(Value::Number)));
    let last = [(LAST, source.rank.map(index))];
    first.into_iter().chain(values).chain(last)
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
    pub(super) fn of(source: &Source, sample: &Sample) -> Self {
        let values = NAMES.into_iter().zip(sample.values());
        let known = values.filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Self {
            taken_unix_ms: unix_milliseconds(sample.taken),
            source: source.name.clone(),
            index: sample.source,
            uuid: source.uuid.clone(),
            cuda: source.cuda,
            rank: source.rank,
            health: sample.health,
            took_us: sample.took.as_micros() as u64,
            values: known.collect(),
        }
    }
}
