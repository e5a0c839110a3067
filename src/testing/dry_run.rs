use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use bytesize::ByteSize;
use candle_headroom_environment::dry_run::{Card, Fit, Report, Setting};
use parking_lot::Mutex;

use crate::error::{Result, invalid};

/// Environment variables of the process that does the work: the test's name, and the file for the outcome.
const TEST: &str = "HEADROOM_DRY_RUN_TEST";
const OUTCOME: &str = "HEADROOM_DRY_RUN_OUTCOME";
/// What the outcome is if the work succeeded.
const DONE: &str = "done";
/// What the driver has to end the work at its limit, before it is ended from outside.
const GRACE: Duration = Duration::from_secs(5);
/// The tests that have made a dry run.
static MADE: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Work on a GPU that is not there, in a test: does it still fit?
///
/// The work runs in a process of its own, which is the test's program once more, on the simulated driver without computing: see `headroom
/// dry-run`. So the test runs on a machine without a GPU, and needs no more memory than the work takes on the host. The program is built with
/// the feature `cuda`, and a shell is prepared with `eval "$(headroom cuda-env)"`.
///
/// ```no_run
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::testing::DryRun;
///
/// #[test]
/// fn it_fits_on_24_gb() -> candle_headroom::Result<()> {
///     let peak = DryRun::on("RTX 4090").run(|| {
///         let device = Device::new_cuda(0)?;
///         let x = Tensor::zeros((4096, 4096), DType::BF16, &device)?;
///         Ok(x.matmul(&x)?)
///     })?;
///     assert!(peak.fits(), "{peak}");
///     Ok(())
/// }
/// ```
///
/// What the work computes is zeros, so it must not assert on values: those of losses, for example. A test makes one dry run.
#[derive(Debug, Clone)]
#[must_use = "call `run`"]
pub struct DryRun {
    card: String,
    test: Option<String>,
    time_limit: Duration,
}

/// What a [`DryRun`] took at the most.
///
/// ```
/// use candle_headroom::testing::Peak;
///
/// fn check(peak: &Peak) {
///     println!("{peak}"); // 20.8 GiB of tensors in step 2, backward, on an RTX 4090: fits
///     assert!(peak.fits() && peak.tensor_bytes() < 21 << 30);
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Peak {
    card: Card,
    tensor_bytes: u64,
    at: String,
    fit: Fit,
}

impl DryRun {
    /// On a card by its name, or by its memory: `"RTX 4090"`, `"24GiB"`.
    ///
    /// ```
    /// use candle_headroom::testing::DryRun;
    ///
    /// let error = DryRun::on("RTX 9999").run(|| Ok(())).unwrap_err();
    /// assert!(error.to_string().contains("RTX 4090")); // the cards that are known
    /// ```
    pub fn on(card: impl Into<String>) -> Self {
        Self {
            card: card.into(),
            test: None,
            time_limit: Duration::from_secs(600),
        }
    }

    /// The name of the test that calls [`run`](Self::run), with its modules: needed where tests run on one thread (`--test-threads=1`), for
    /// else the thread has it.
    ///
    /// ```
    /// use candle_headroom::testing::DryRun;
    ///
    /// let run = DryRun::on("RTX 4090").test("training::it_fits_on_24_gb");
    /// # _ = run;
    /// ```
    pub fn test(mut self, name: impl Into<String>) -> Self {
        self.test = Some(name.into());
        self
    }

    /// After this time the work is given up. Ten minutes by default.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use candle_headroom::testing::DryRun;
    ///
    /// let run = DryRun::on("RTX 4090").time_limit(Duration::from_secs(60));
    /// # _ = run;
    /// ```
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Runs the work, and returns what it took.
    ///
    /// In the process that does the work this returns an error instead, so that its test ends there: let `?` or `unwrap` do that.
    ///
    /// ```no_run
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom::testing::DryRun;
    ///
    /// let peak = DryRun::on("24GiB").run(|| Ok(Tensor::zeros(1 << 30, DType::F32, &Device::new_cuda(0)?)?))?;
    /// assert_eq!(peak.tensor_bytes(), 4 << 30);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`is_testing`](crate::Error::is_testing): if the card is not known, the simulated driver is not there, or the work fails for another
    /// reason than memory. One that runs out of memory does not fit: that is a [`Peak`].
    pub fn run<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<Peak> {
        let card = self.card.parse::<Card>();
        let card = card.map_err(|error| invalid!(Testing, "{error}"))?;
        let named = thread::current();
        let test = self.test.as_deref().or(named.name());
        let Some(test) = test.filter(|test| *test != "main") else {
            return Err(invalid!(
                Testing,
                "the test that makes the dry run has no name where tests run on one thread: give it with `DryRun::test`"
            ));
        };
        if let Some((wanted, file)) = std::env::var(TEST).ok().zip(std::env::var_os(OUTCOME)) {
            return Err(match wanted == test {
                true => do_work(work, Path::new(&file)),
                false => invalid!(Testing, "this process makes the dry run of {wanted}"),
            });
        }
        // The process that does the work begins the test anew, and would come to the first one again.
        if !MADE.lock().insert(test.to_owned()) {
            return Err(invalid!(
                Testing,
                "the test {test} has made a dry run: make another one in a test of its own"
            ));
        }
        let folder =
            Folder::new().map_err(|error| invalid!(Testing, "no temporary folder: {error}"))?;
        let report = folder.0.join("report.jsonl");
        let setting = Setting {
            card: &card,
            devices: 1,
            seconds: self.time_limit.as_secs().max(1),
            report: &report,
            libraries: None,
        };
        let outcome = folder.0.join("outcome");
        let program = std::env::current_exe();
        let program =
            program.map_err(|error| invalid!(Testing, "this program is not known: {error}"))?;
        let mut program = Command::new(program);
        program.args([test, "--exact", "--include-ignored", "--nocapture"]);
        program.env(TEST, test).env(OUTCOME, &outcome);
        setting.apply(&mut program);
        let said = folder.0.join("said");
        let limit = self.time_limit.saturating_add(GRACE);
        let ran = File::create(&said).and_then(|file| {
            program.stdout(Stdio::null()).stderr(file);
            wait(&mut program.spawn()?, limit)
        });
        ran.map_err(|error| invalid!(Testing, "this program cannot be started again: {error}"))?;
        let read = |file| fs::read_to_string(file).unwrap_or_default();
        conclude(card, &report, &read(outcome), &read(said))
    }
}

/// Waits until the process ends, or ends it at the limit.
fn wait(process: &mut Child, limit: Duration) -> io::Result<()> {
    let began = Instant::now();
    while process.try_wait()?.is_none() {
        if began.elapsed() > limit {
            process.kill()?;
            process.wait()?;
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Does the work, leaves its outcome in the file, and returns an error with which the test ends.
fn do_work<T>(work: impl FnOnce() -> Result<T>, file: &Path) -> crate::Error {
    let outcome = match work() {
        Ok(_) => DONE.to_owned(),
        Err(error) => format!("{error:#}"),
    };
    match fs::write(file, outcome) {
        Ok(()) => invalid!(
            Testing,
            "the dry run is over: its result is in the process that began it"
        ),
        Err(error) => invalid!(Testing, "{}: {error}", file.display()),
    }
}

fn conclude(card: Card, report: &Path, outcome: &str, said: &str) -> Result<Peak> {
    let report = Report::read(report).unwrap_or_default();
    let failed = |why: &str| {
        let last: Vec<_> = said.lines().rev().take(4).collect();
        let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
        invalid!(Testing, "the dry run has no result: {why}\n{last}")
    };
    if let Some(problem) = report.problems.first() {
        return Err(failed(&format!("{} ({})", problem.problem, problem.what)));
    }
    if !report.killed.is_empty() {
        return Err(failed(
            "a signal or `_exit` ended the work, or the time limit did",
        ));
    }
    let Some(device) = report.largest() else {
        return Err(failed(
            "the work used no device of the simulated driver: build with the feature `cuda`, and prepare the shell with `eval \"$(headroom cuda-env)\"`",
        ));
    };
    if outcome == DONE {
        return Ok(Peak {
            tensor_bytes: device.peak_tensor_bytes,
            at: device.peak.at.describe(),
            fit: card.fits(device.peak_block_bytes),
            card,
        });
    }
    match report.ran_out().filter(|(_, refused)| !refused.by_limit) {
        Some((_, refused)) => Ok(Peak {
            tensor_bytes: refused.needed_bytes(),
            at: refused.at.describe(),
            fit: match card.fits(refused.needed_bytes()) {
                Fit::TooClose => Fit::TooClose,
                // It may be the blocks that do not fit.
                Fit::Yes | Fit::No => Fit::No,
            },
            card,
        }),
        None if outcome.is_empty() => Err(failed("the work did not end")),
        None => Err(failed(outcome)),
    }
}

impl Peak {
    /// Whether it fits even if as much as was ever seen lies outside of the tensors.
    ///
    /// ```
    /// # fn check(peak: &candle_headroom::testing::Peak) {
    /// assert!(peak.fits(), "{peak}");
    /// # }
    /// ```
    pub fn fits(&self) -> bool {
        self.fit == Fit::Yes
    }

    /// What tensors held at the peak, in bytes. Where memory ran out, with what was asked for last.
    ///
    /// ```
    /// # fn check(peak: &candle_headroom::testing::Peak) {
    /// assert!(peak.tensor_bytes() < 20 << 30);
    /// # }
    /// ```
    pub fn tensor_bytes(&self) -> u64 {
        self.tensor_bytes
    }

    /// What context, kernels, libraries and the driver take besides, in bytes: an estimate, at least and at most.
    ///
    /// ```
    /// # fn check(peak: &candle_headroom::testing::Peak) {
    /// let most = peak.tensor_bytes() + peak.outside_bytes().end();
    /// assert!(most < 24 << 30);
    /// # }
    /// ```
    pub fn outside_bytes(&self) -> RangeInclusive<u64> {
        self.card.outside()
    }

    /// What the program was doing, such as `step 2, backward`; empty outside of a trainer.
    ///
    /// ```
    /// # fn check(peak: &candle_headroom::testing::Peak) {
    /// assert!(peak.at().ends_with("backward"));
    /// # }
    /// ```
    pub fn at(&self) -> &str {
        &self.at
    }
}

impl fmt::Display for Peak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of tensors", ByteSize(self.tensor_bytes))?;
        if !self.at.is_empty() {
            write!(f, " in {}", self.at)?;
        }
        let fits = match self.fit {
            Fit::Yes => "fits",
            Fit::TooClose => "too close to say",
            Fit::No => "does not fit",
        };
        write!(f, ", on the card {}: {fits}", self.card.name)
    }
}

/// A temporary folder, removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Self> {
        use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        // A folder of a former process with this number may still be there.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let (process, now) = (std::process::id(), now.unwrap_or_default().as_nanos());
        let folder = std::env::temp_dir().canonicalize()?;
        let folder = folder.join(format!("headroom-dry-run-{process}-{now}-{number}"));
        fs::create_dir(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}
