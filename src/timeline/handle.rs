use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::gathered::Gathered;
use super::rank_times::RankTimes;
use super::recorder::Recorder;
use super::{page, trace};
use crate::batch::{Observer, TrainingEvent};
use crate::distributed::Group;
use crate::error::{OutputError, Result};
use crate::incident::Incident;
use crate::replace::replace;

/// Records the work of a trainer or a [`BatchProcessor`](crate::batch::BatchProcessor): steps, micro-batches, phases, memory, events.
///
/// The record takes at most about 4 MiB. It keeps the latest phases and micro-batches, and the steps of the whole run: in a long run
/// neighbouring steps are merged, keeping their highest peak. Clones share one record. Times are the host's: on a GPU a phase's time
/// is that of queuing its work, because the record never waits for a device.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::Timeline;
/// use candle_headroom::batch::{BatchProcessor, Fixed};
///
/// let timeline = Timeline::new();
/// let x = Tensor::arange(0f32, 64., &Device::Cpu)?; // (64,)
/// let mut processor = BatchProcessor::builder(Fixed::new(16)?).observer(timeline.clone()).build();
/// processor.process(&x, |chunk, _| chunk.sqr()?.sum_all())?;
/// timeline.number("quality", 0.9); // a curve of your own
/// timeline.note("the cache is full"); // a label above the charts
/// let mut trace = Vec::new();
/// timeline.write_trace(&mut trace)?; // for https://ui.perfetto.dev
/// let mut page = Vec::new();
/// timeline.write_page("sums of squares", &mut page)?; // for a browser
/// assert!(page.starts_with(b"<!doctype html>"));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Timeline {
    pub(super) recorder: Arc<Mutex<Recorder>>,
}

impl Timeline {
    /// An empty record that begins now.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a number at the current time, such as a loss: a curve on the page and a counter in the trace. Up to 8 names are
    /// kept, and a number that is not finite is ignored.
    pub fn number(&self, name: &str, value: f64) {
        self.recorder.lock().number(name, value);
    }

    /// Records a text at the current time: a label on the page and an instant in the trace. The latest 64 are kept.
    pub fn note(&self, text: &str) {
        self.recorder.lock().note(text);
    }

    /// Writes the record in the Chrome trace format, which [Perfetto](https://ui.perfetto.dev), `chrome://tracing` and Speedscope
    /// open: spans for steps, micro-batches and phases, counters for memory in bytes, and instants for events.
    ///
    /// # Errors
    /// [`OutputError`] if `to` fails.
    pub fn write_trace(&self, to: &mut impl Write) -> Result<()> {
        let written = to.write_all(trace::write(&self.copy()).as_bytes());
        written.map_err(|error| OutputError::of("a trace", &error).into())
    }

    /// Writes the record as a page for a browser: one file that needs no network. `title` is its heading.
    ///
    /// # Errors
    /// [`OutputError`] if `to` fails.
    pub fn write_page(&self, title: &str, to: &mut impl Write) -> Result<()> {
        let written = to.write_all(page::write(&self.copy(), title, None).as_bytes());
        written.map_err(|error| OutputError::of("a page", &error).into())
    }

    /// Writes a trace to a file, which is replaced as a whole or not at all; see [`write_trace`](Self::write_trace).
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn save_trace(&self, path: impl AsRef<Path>) -> Result<()> {
        save(path.as_ref(), &trace::write(&self.copy()))
    }

    /// Writes a page to a file, which is replaced as a whole or not at all; see [`write_page`](Self::write_page).
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn save_page(&self, title: &str, path: impl AsRef<Path>) -> Result<()> {
        save(path.as_ref(), &page::write(&self.copy(), title, None))
    }

    /// Writes the records of all ranks of a group as one page, `path` with `.html`, and one trace, `path` with `.json`. All ranks call it, and
    /// rank 0 writes. Returns how the ranks spent their time.
    ///
    /// The page shows a lane for each rank, with its waiting for others, a table, and rank 0's record; in the trace each rank is a process. Their
    /// clocks are aligned by the ends of exchanges. Each rank sends a share of what one record holds, so the files grow little with the
    /// number of ranks: of many ranks the trace has the latest phases only. In a group of one the files are those of
    /// [`save_page`](Self::save_page) and [`save_trace`](Self::save_trace).
    ///
    /// ```
    /// use candle_headroom::Timeline;
    /// use candle_headroom::distributed::Group;
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path();
    /// let group = Group::from_environment()?;
    /// let timeline = Timeline::new();
    /// // … train, with `.group(&group).observer(timeline.clone())` …
    /// let times = timeline.save_all(&group, "my run", folder.join("run"))?;
    /// println!("{times}"); // rank 3 is the slowest: the others waited 12 % of the time for it
    /// assert!(folder.join("run.html").exists() && folder.join("run.json").exists());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`GroupError`](crate::error::GroupError) if a rank is lost. Each of the others then writes its own record, with its rank in the name, as
    ///   in `run.rank1.html` and `run.rank1.json`;
    /// - [`OutputError`] with the path, on rank 0.
    pub fn save_all(
        &self,
        group: &Group,
        title: &str,
        path: impl AsRef<Path>,
    ) -> Result<RankTimes> {
        let (path, rank, own) = (path.as_ref(), group.rank(), self.copy());
        let gathered = Gathered::of(group, own.clone());
        match &gathered {
            Ok((None, _)) => {}
            Ok((Some(all), _)) if group.size() > 1 => {
                let page = page::write(&own, title, Some(all));
                save_both(path, &page, &trace::write_all(all))?;
            }
            Ok(_) => save_both(path, &page::write(&own, title, None), &trace::write(&own))?,
            Err(_) => {
                let path = ending(path, &format!(".rank{rank}"));
                let page = page::write(&own, title, None);
                // The lost rank matters more.
                if let Err(error) = save_both(&path, &page, &trace::write(&own)) {
                    tracing::warn!(%error, "the record of this rank is lost");
                }
            }
        }
        gathered.map(|(_, times)| times)
    }

    /// A copy, so that writing the record does not stop the work that is being recorded.
    fn copy(&self) -> Recorder {
        self.recorder.lock().clone()
    }
}

fn save_both(path: &Path, page: &str, trace: &str) -> Result<()> {
    save(&ending(path, ".html"), page)?;
    save(&ending(path, ".json"), trace)
}

/// A path with more at its end.
fn ending(path: &Path, end: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(end);
    path.into()
}

/// Replaces a file as a whole. Devices and pipes are written to in place.
fn save(path: &Path, text: &str) -> Result<()> {
    let saved = match path.metadata() {
        Ok(there) if !there.is_file() => {
            let file = File::options().write(true).open(path);
            file.and_then(|mut file| file.write_all(text.as_bytes()))
        }
        _ => replace(path, |file| file.write_all(text.as_bytes())),
    };
    Ok(saved.map_err(|error| OutputError::at(path, &error))?)
}

impl Observer for Timeline {
    fn observe(&self, event: &TrainingEvent<'_>) {
        // Before the lock: an external error's `Display` may use this timeline.
        let incident = Incident::of(event);
        self.recorder.lock().record(event, incident);
    }
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeline").finish_non_exhaustive()
    }
}
