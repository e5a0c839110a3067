use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use super::enabled::Passed;
use crate::files::FileOperation;

/// All armed plans; those whose guards were dropped are removed by the next one.
static ARMED: Mutex<Vec<Weak<Plan>>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Plan {
    faults: FileFaults,
    passed: Passed,
}

/// Operations on the files of a checkpoint, or of a timeline's page or trace, that fail, in whichever thread they happen.
///
/// An operation that fails has not begun: nothing was created, written, renamed or removed. Several guards may be armed at the same time,
/// each for its folder.
///
/// ```
/// # #[cfg(feature = "testing")] {
/// use std::io::ErrorKind;
///
/// use candle_core::{DType, Device, Var};
/// use candle_headroom::checkpoint::Checkpoints;
/// use candle_headroom::testing::{FileFaults, FileOperation};
/// use candle_headroom::{AdamW, AdaptiveTrainer};
///
/// # let temporary = tempfile::tempdir()?;
/// # let folder = temporary.path().join("run");
/// let optimizer = AdamW::builder(vec![("w", Var::zeros(4, DType::F32, &Device::Cpu)?)]).build()?;
/// let trainer = AdaptiveTrainer::builder(optimizer).build()?;
/// let mut checkpoints = Checkpoints::builder(&folder).open()?;
/// let faults = FileFaults::in_folder(&folder).only(FileOperation::Write).at(0);
/// let armed = faults.failing_with(ErrorKind::StorageFull).arm();
/// assert!(checkpoints.save_now(&trainer).is_err());
/// assert_eq!(armed.fired(), 1);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "call `arm()`"]
pub struct FileFaults {
    folder: PathBuf,
    only: Option<FileOperation>,
    first: usize,
    times: usize,
    kind: Option<io::ErrorKind>,
    delay: Option<Duration>,
}

impl FileFaults {
    /// Counts the operations below this folder. None fails until [`at`](Self::at) says which.
    ///
    /// ```
    /// use candle_headroom::Timeline;
    /// use candle_headroom::testing::FileFaults;
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path();
    /// let save = || Timeline::new().save_page("my run", folder.join("run.html"));
    /// let armed = FileFaults::in_folder(folder).arm();
    /// save()?;
    /// assert_eq!((armed.operations(), armed.fired()), (1, 0));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            only: None,
            first: usize::MAX,
            times: 1,
            kind: Some(io::ErrorKind::Other),
            delay: None,
        }
    }

    /// Fails the operation with this index, counted from 0 since arming.
    ///
    /// ```
    /// use candle_headroom::Timeline;
    /// use candle_headroom::testing::FileFaults;
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path();
    /// let save = || Timeline::new().save_page("my run", folder.join("run.html"));
    /// let _armed = FileFaults::in_folder(folder).at(1).arm();
    /// assert!(save().is_ok());
    /// assert!(save().is_err()); // the second operation
    /// ```
    pub fn at(self, first: usize) -> Self {
        Self { first, ..self }
    }

    /// Counts for [`at`](Self::at) only operations of this kind. Without it, reads are not counted.
    ///
    /// ```
    /// use candle_headroom::Timeline;
    /// use candle_headroom::testing::{FileFaults, FileOperation};
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path();
    /// let save = || Timeline::new().save_page("my run", folder.join("run.html"));
    /// let armed = FileFaults::in_folder(folder).only(FileOperation::Rename).at(0).arm();
    /// save()?; // one operation, which writes
    /// assert_eq!((armed.operations(), armed.fired()), (1, 0));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn only(self, operation: FileOperation) -> Self {
        let only = Some(operation);
        Self { only, ..self }
    }

    /// Fails this many consecutive operations instead of one.
    ///
    /// ```
    /// use candle_headroom::Timeline;
    /// use candle_headroom::testing::FileFaults;
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path();
    /// let save = || Timeline::new().save_page("my run", folder.join("run.html"));
    /// let _armed = FileFaults::in_folder(folder).at(0).times(2).arm();
    /// assert!(save().is_err() && save().is_err());
    /// assert!(save().is_ok());
    /// ```
    pub fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }

    /// Fails with an error of this kind; [`ErrorKind::Other`](io::ErrorKind::Other) by default.
    ///
    /// ```
    /// use std::io::ErrorKind;
    ///
    /// use candle_headroom::testing::FileFaults;
    /// use candle_headroom::{Error, Timeline};
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path();
    /// let full = FileFaults::in_folder(folder).at(0).failing_with(ErrorKind::StorageFull);
    /// let _armed = full.arm();
    /// let error = Timeline::new().save_page("my run", folder.join("run.html")).unwrap_err();
    /// assert!(matches!(error, Error::Output(error) if error.kind == ErrorKind::StorageFull));
    /// ```
    pub fn failing_with(self, kind: io::ErrorKind) -> Self {
        let kind = Some(kind);
        Self { kind, ..self }
    }

    /// Makes the operation last this much longer instead of failing it, as a busy disk does.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    ///
    /// use candle_headroom::Timeline;
    /// use candle_headroom::testing::FileFaults;
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path();
    /// let delay = Duration::from_millis(20);
    /// let _armed = FileFaults::in_folder(folder).at(0).delaying(delay).arm();
    /// let began = Instant::now();
    /// Timeline::new().save_page("my run", folder.join("run.html"))?;
    /// assert!(began.elapsed() >= delay);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn delaying(self, delay: Duration) -> Self {
        let delay = Some(delay);
        Self { delay, ..self }
    }

    /// Kills the process at the operation, before it happens: by SIGKILL, or where there are no signals by
    /// [`abort`](std::process::abort).
    ///
    /// ```no_run
    /// use candle_headroom::testing::FileFaults;
    ///
    /// // In a process of its own, which saves to this folder:
    /// let armed = FileFaults::in_folder("checkpoints/run-7").at(3).killing().arm();
    /// // … train; the process ends at the fourth operation. A new one resumes …
    /// assert!(armed.operations() < 4);
    /// ```
    pub fn killing(self) -> Self {
        Self { kind: None, ..self }
    }

    /// Arms the faults until the guard is dropped.
    ///
    /// ```
    /// use candle_headroom::Timeline;
    /// use candle_headroom::testing::FileFaults;
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path();
    /// let save = || Timeline::new().save_page("my run", folder.join("run.html"));
    /// let armed = FileFaults::in_folder(folder).at(0).times(usize::MAX).arm();
    /// assert!(save().is_err());
    /// drop(armed);
    /// assert!(save().is_ok());
    /// ```
    pub fn arm(self) -> ArmedFileFaults {
        let plan = Arc::new(Plan {
            faults: self,
            passed: Passed::default(),
        });
        let mut armed = ARMED.lock();
        armed.retain(|plan| plan.strong_count() > 0);
        armed.push(Arc::downgrade(&plan));
        ArmedFileFaults(plan)
    }
}

/// File faults that are armed until this is dropped.
///
/// ```
/// use candle_headroom::Timeline;
/// use candle_headroom::testing::FileFaults;
///
/// # let temporary = tempfile::tempdir().unwrap();
/// # let folder = temporary.path();
/// let save = || Timeline::new().save_page("my run", folder.join("run.html"));
/// let armed = FileFaults::in_folder(folder).at(0).arm();
/// assert!(save().is_err());
/// assert!(save().is_ok());
/// assert_eq!((armed.operations(), armed.fired()), (2, 1));
/// ```
#[derive(Debug)]
#[must_use = "dropping it disarms the faults"]
pub struct ArmedFileFaults(Arc<Plan>);

impl ArmedFileFaults {
    /// Number of operations so far, of all kinds but reads, which count if [`FileFaults::only`] chose them.
    ///
    /// ```
    /// use candle_headroom::Timeline;
    /// use candle_headroom::testing::FileFaults;
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path();
    /// let save = || Timeline::new().save_page("my run", folder.join("run.html"));
    /// let armed = FileFaults::in_folder(folder).arm(); // none fails
    /// save()?;
    /// save()?;
    /// assert_eq!(armed.operations(), 2);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn operations(&self) -> usize {
        self.0.passed.all.load(Relaxed)
    }

    /// Number of operations that failed so far.
    ///
    /// ```
    /// use candle_headroom::Timeline;
    /// use candle_headroom::testing::FileFaults;
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path();
    /// let save = || Timeline::new().save_page("my run", folder.join("run.html"));
    /// let armed = FileFaults::in_folder(folder).at(1).arm();
    /// save()?;
    /// assert_eq!(armed.fired(), 0);
    /// assert!(save().is_err());
    /// assert_eq!(armed.fired(), 1);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn fired(&self) -> usize {
        self.0.passed.fired.load(Relaxed)
    }
}

/// An operation at which an armed fault can fail.
pub(crate) fn inject_file(operation: FileOperation, path: &Path) -> io::Result<()> {
    let armed: Vec<_> = ARMED.lock().iter().filter_map(Weak::upgrade).collect();
    let plans = armed.iter();
    let mut plans = plans.filter(|plan| path.starts_with(&plan.faults.folder));
    plans.try_for_each(|plan| plan.pass(operation))
}

impl Plan {
    fn pass(&self, operation: FileOperation) -> io::Result<()> {
        let faults = &self.faults;
        // What is changed has the same numbers whatever is read between.
        if operation == FileOperation::Read && faults.only != Some(operation) {
            return Ok(());
        }
        self.passed.all.fetch_add(1, Relaxed);
        if faults.only.is_some_and(|only| only != operation) {
            return Ok(());
        }
        match faults.delay {
            _ if !self.passed.fires(faults.first, faults.times) => Ok(()),
            Some(delay) => {
                thread::sleep(delay);
                Ok(())
            }
            None => Err(faults.kind.unwrap_or_else(|| kill()).into()),
        }
    }
}

fn kill() -> ! {
    #[cfg(unix)]
    let _ = signal_hook::low_level::raise(signal_hook::consts::SIGKILL);
    std::process::abort()
}
