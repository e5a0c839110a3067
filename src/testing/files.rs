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

/// Operations on the files of a checkpoint that fail, in whichever thread they happen.
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
    pub fn at(self, first: usize) -> Self {
        Self { first, ..self }
    }

    /// Counts for [`at`](Self::at) only operations of this kind.
    pub fn only(self, operation: FileOperation) -> Self {
        let only = Some(operation);
        Self { only, ..self }
    }

    /// Fails this many consecutive operations instead of one.
    pub fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }

    /// Fails with an error of this kind.
    pub fn failing_with(self, kind: io::ErrorKind) -> Self {
        let kind = Some(kind);
        Self { kind, ..self }
    }

    /// Makes the operation last this much longer instead of failing it, as a busy disk does.
    pub fn delaying(self, delay: Duration) -> Self {
        let delay = Some(delay);
        Self { delay, ..self }
    }

    /// Kills the process at the operation, before it happens: by SIGKILL, or where there are no signals by
    /// [`abort`](std::process::abort).
    pub fn killing(self) -> Self {
        Self { kind: None, ..self }
    }

    /// Arms the faults until the guard is dropped.
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
#[derive(Debug)]
#[must_use = "dropping it disarms the faults"]
pub struct ArmedFileFaults(Arc<Plan>);

impl ArmedFileFaults {
    /// Number of operations so far, of all kinds.
    pub fn operations(&self) -> usize {
        self.0.passed.all.load(Relaxed)
    }

    /// Number of operations that failed so far.
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
