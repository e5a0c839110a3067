//! Where samples go: files that are rotated, gauges, closures, and anything else that writes. A sink that panics is dropped, and the monitor goes on.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::{fmt, mem};

use bytesize::ByteSize;
use serde::ser::SerializeMap;
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
/// assert_eq!(monitor.failed_writes(), 0);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// A closure `|source: &Source, sample: &Sample| -> io::Result<()>` is one too.
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

impl<F: FnMut(&Source, &Sample) -> io::Result<()> + Send> Sink for F {
    fn write(&mut self, source: &Source, sample: &Sample) -> io::Result<()> {
        self(source, sample)
    }
}

/// A sink or a threshold's callback. If it panics, it is dropped, and the monitor goes on.
pub(super) struct Output {
    /// `None` after a panic.
    sink: Option<Box<dyn Sink>>,
    is_failing: bool,
}

impl Output {
    pub(super) fn new(sink: impl Sink + 'static) -> Self {
        Self {
            sink: Some(Box::new(sink)),
            is_failing: false,
        }
    }

    /// Hands a sample on. Returns whether it was received without an error.
    pub(super) fn send(&mut self, source: &Source, sample: &Sample) -> bool {
        let Some(sink) = &mut self.sink else {
            return false;
        };
        // Unwind safety: after a panic nothing but its destructor sees the sink's state.
        let received = catch_unwind(AssertUnwindSafe(|| sink.write(source, sample)));
        let was_failing = mem::replace(&mut self.is_failing, !matches!(received, Ok(Ok(()))));
        match received {
            Ok(Err(error)) if !was_failing => tracing::warn!(%error, "samples cannot be written"),
            Ok(_) => {}
            Err(_) => {
                tracing::error!("a sink or callback of the monitor panicked and is dropped");
                let dropped = self.sink.take();
                let _ = catch_unwind(AssertUnwindSafe(|| drop(dropped)));
            }
        }
        !self.is_failing
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").finish_non_exhaustive()
    }
}

/// Writes samples to a file, one a line, as JSON objects in which a value that is not known is left out. [`SampleRecord`] reads them back.
///
/// An existing file is appended to. A file has one writer: programs that run side by side need paths of their own.
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
///     .sink(FileSink::json_lines(folder.join("samples.jsonl")).rotate_at(ByteSize::mib(64)).open()?)
///     .start()?;
/// drop(monitor);
/// let text = std::fs::read_to_string(folder.join("samples.jsonl")).unwrap();
/// assert!(text.starts_with("{\"taken_unix_ms\":"));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
pub struct FileSink {
    options: FileSinkBuilder,
    file: LineFile,
    /// Kept, so that a sample allocates nothing.
    line: Vec<u8>,
}

/// Options of a [`FileSink`]; from [`FileSink::json_lines`].
///
/// ```
/// use candle_headroom::ByteSize;
/// use candle_headroom::monitor::FileSink;
///
/// # let temporary = tempfile::tempdir().unwrap();
/// # let path = temporary.path().join("samples.jsonl");
/// let sink = FileSink::json_lines(&path).rotate_at(ByteSize::mib(64)).open()?;
/// assert!(path.exists());
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "call `open()`"]
pub struct FileSinkBuilder {
    path: PathBuf,
    rotate_at: Option<u64>,
}

impl FileSink {
    /// Options for a file at `path`.
    ///
    /// ```
    /// use candle_headroom::Monitor;
    /// use candle_headroom::monitor::{FileSink, SampleRecord};
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let path = temporary.path().join("samples.jsonl");
    /// let monitor = Monitor::builder().sink(FileSink::json_lines(&path).open()?).start()?;
    /// drop(monitor);
    /// let text = std::fs::read_to_string(&path).unwrap();
    /// let first: SampleRecord = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    /// assert_eq!(first.index, 0); // of the first source
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn json_lines(path: impl Into<PathBuf>) -> FileSinkBuilder {
        FileSinkBuilder {
            path: path.into(),
            rotate_at: None,
        }
    }
}

impl FileSinkBuilder {
    /// Starts a new file before one grows beyond `size`; the one before is kept with `.1` appended to its name. Unbounded by default.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use candle_headroom::monitor::FileSink;
    /// use candle_headroom::{ByteSize, Monitor};
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let path = temporary.path().join("samples.jsonl");
    /// let sink = FileSink::json_lines(&path).rotate_at(ByteSize::b(1)).open()?; // a line fills a file
    /// let interval = Duration::from_millis(20);
    /// let monitor = Monitor::builder().interval(interval).sink(sink).start()?;
    /// while monitor.history(0).len() < 3 {
    ///     std::thread::sleep(interval);
    /// }
    /// assert!(path.with_extension("jsonl.1").exists());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn rotate_at(mut self, size: ByteSize) -> Self {
        self.rotate_at = Some(size.as_u64());
        self
    }

    /// Opens or creates the file.
    ///
    /// ```
    /// use candle_headroom::Error;
    /// use candle_headroom::monitor::FileSink;
    ///
    /// let error = FileSink::json_lines("/no/such/folder/samples.jsonl").open().unwrap_err();
    /// assert!(matches!(error, Error::Output(error) if error.target.ends_with("samples.jsonl")));
    /// ```
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn open(self) -> Result<FileSink> {
        let file = LineFile::open(&self.path, self.rotate_at);
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
        // Not a `SampleRecord`, which allocates.
        let mut serializer = serde_json::Serializer::new(&mut *line);
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("taken_unix_ms", &unix_milliseconds(sample.taken))?;
        map.serialize_entry("source", &source.name)?;
        map.serialize_entry("index", &sample.source)?;
        if let Some(uuid) = &source.uuid {
            map.serialize_entry("uuid", uuid)?;
        }
        if let Some(cuda) = source.cuda {
            map.serialize_entry("cuda", &cuda)?;
        }
        map.serialize_entry("health", &sample.health)?;
        map.serialize_entry("took_us", &(sample.took.as_micros() as u64))?;
        for (name, value) in NAMES.into_iter().zip(sample.values()) {
            if let Some(value) = value {
                map.serialize_entry(name, &value)?;
            }
        }
        if let Some(rank) = source.rank {
            map.serialize_entry("rank", &rank)?;
        }
        map.end()?;
        line.push(b'\n');
        let written = file.append(line);
        written
            .map_err(|error| io::Error::new(error.kind(), OutputError::at(&options.path, &error)))
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
    /// The known values by their names.
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

/// Sets gauges of the crate [`metrics`], for the recorder that the program has installed: Prometheus, StatsD and others.
///
/// The gauges are named after the columns of a [`FileSink`], as in `candle_headroom_used_bytes`, with the labels
/// `source` and `index`, and `rank` in a [group](super::MonitorBuilder::group). A value that was never known has no gauge. A value that is no longer known, as for a lost GPU, is NaN.
/// `candle_headroom_up` is 1 if a source answers and 0 if it does not.
///
/// ```
/// use candle_headroom::Monitor;
/// use candle_headroom::monitor::MetricsSink;
///
/// let monitor = Monitor::builder().sink(MetricsSink::new()).start()?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[cfg(feature = "metrics")]
#[derive(Debug, Default)]
pub struct MetricsSink {
    /// By the index of the source and the name. Registered when a value is first known, since recorders show unset gauges as 0.
    gauges: BTreeMap<(usize, &'static str), metrics::Gauge>,
}

#[cfg(feature = "metrics")]
impl MetricsSink {
    /// A sink for the program's recorder, which must be installed before the first sample.
    ///
    /// ```
    /// use candle_headroom::Monitor;
    /// use candle_headroom::monitor::MetricsSink;
    ///
    /// // After the program has installed its recorder.
    /// let monitor = Monitor::builder().sink(MetricsSink::new()).start()?;
    /// assert_eq!(monitor.failed_writes(), 0);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn new() -> Self {
        Self::default()
    }
}

#[cfg(feature = "metrics")]
impl Sink for MetricsSink {
    fn write(&mut self, source: &Source, sample: &Sample) -> io::Result<()> {
        use std::collections::btree_map::Entry;

        use metrics::{Label, gauge};

        let up = ("up", Some(u64::from(sample.health == Health::Good)));
        let values = NAMES.into_iter().zip(sample.values());
        for (name, value) in std::iter::once(up).chain(values) {
            let gauge = match self.gauges.entry((sample.source, name)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(_) if value.is_none() => continue,
                Entry::Vacant(place) => {
                    let full_name = format!("candle_headroom_{name}");
                    let mut labels = vec![
                        Label::new("source", source.name.clone()),
                        Label::new("index", sample.source.to_string()),
                    ];
                    let rank = source.rank.map(|rank| rank.to_string());
                    labels.extend(rank.map(|rank| Label::new("rank", rank)));
                    place.insert(gauge!(full_name, labels))
                }
            };
            gauge.set(value.map_or(f64::NAN, |value| value as f64));
        }
        Ok(())
    }
}
