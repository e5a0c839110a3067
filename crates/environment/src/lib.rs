//! Is this machine fit for candle, and if not, what helps? See [`Environment::check`].
//!
//! ```
//! use candle_headroom_environment::{Environment, Requirement};
//!
//! let report = Environment::new().check();
//! if !report.is_fit_for(Requirement::CudaInference) {
//!     println!("{}", report.summary()); // such as "training will run on the CPU: this machine has no NVIDIA GPU"
//! }
//! assert!(report.is_fit_for(Requirement::Cpu));
//! ```
//!
//! A check always ends in a [`Report`], within its time limit: what cannot be read, fails or hangs is a [`Finding`]. It repairs nothing,
//! and it allocates nothing on a GPU. Each finding has an id that never changes its meaning, what was seen, the consequences and what to do
//! next: programs compare ids, people read the rest. A report can be serialized, and [`redacted`](Report::redacted) for a public issue.
//!
//! `probe` reads files and libraries, each subject in a thread of its own, and `judge` draws conclusions; what concerns nobody else is read
//! and judged in one file (`host`, `toolkit`). The findings' texts are a table (`code`). Nothing here panics, prints or fails: what
//! cannot be read is a finding.
//!
//! This package needs no candle, so that it can be built and used without it. `candle_headroom::environment` is this package. The modules
//! that the documentation hides are shared with candle-headroom's other packages and may change in any release.

#![deny(missing_docs, unsafe_code, clippy::undocumented_unsafe_blocks)]
// It neither prints nor ends the process, and what cannot be is an error: promise 10.
#![deny(
    clippy::dbg_macro,
    clippy::exit,
    clippy::print_stderr,
    clippy::print_stdout
)]
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::panic,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]
#![warn(missing_debug_implementations)]

mod code;
#[doc(hidden)]
pub mod dry_run;
#[doc(hidden)]
pub mod facts;
mod host;
mod judge;
mod machine;
#[doc(hidden)]
#[allow(unsafe_code, reason = "calls NVML")]
pub mod nvml;
#[doc(hidden)]
#[allow(unsafe_code, reason = "loads libraries, which runs their code")]
pub mod patience;
#[allow(unsafe_code, reason = "calls libcuda, NVML and NCCL")]
mod probe;
mod redact;
mod report;
#[allow(unsafe_code, reason = "calls libcuda")]
mod smoke;
mod source;
#[doc(hidden)]
pub mod system;
mod toolkit;
mod versions;

pub use bytesize::ByteSize;

pub use code::{Finding, FindingCode, Severity};
pub use machine::Gpu;
pub use nvml::Neighbour;
pub use report::{Report, Requirement, UnknownRequirement};
pub use versions::Versions;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use code::Findings;
use machine::{Facts, gather};
use probe::{Answer, Reply};
use source::{Kernels, Source};

/// The machine to check: this one by default.
///
/// Libraries are loaded at run time, so a build without the feature `cuda` checks as much as one with it, also where a program that links
/// CUDA would not start. On Linux a library that the process has not loaded yet is first loaded in another process, and not at all here if
/// it hangs or crashes there. Calls that can hang run in threads; one that does not return in time is left behind, and the report comes
/// without its result. At exit, destructors of the driver's libraries may wait for such a call: use `_exit` then, as `headroom doctor` does.
///
/// ```
/// use candle_headroom_environment::Requirement;
/// use candle_headroom_environment::Environment;
///
/// let report = Environment::new().check();
/// println!("{report}");
/// assert!(report.is_fit_for(Requirement::Cpu));
/// ```
#[derive(Debug, Clone)]
pub struct Environment {
    source: Source,
    time_limit: Duration,
}

/// A driver takes some seconds to wake eight GPUs.
const TIME_LIMIT: Duration = Duration::from_secs(30);

impl Environment {
    /// This machine and the process's variables as they are now. Nothing is checked yet.
    ///
    /// ```
    /// use candle_headroom_environment::Environment;
    ///
    /// let environment = Environment::new();
    /// let report = environment.check();
    /// assert_eq!(report.worst(), report.findings()[0].severity());
    /// ```
    pub fn new() -> Self {
        Self {
            source: Source::of_this_process(source::kernels_of_this_build()),
            time_limit: TIME_LIMIT,
        }
    }

    /// Reads `/proc`, `/sys`, `/dev`, `/etc` and all libraries below this folder, as tests do. NVML and libcuda are then loaded from there
    /// alone. Absolute links in the folder lead out of it; to check an image, use `chroot`.
    ///
    /// # Safety
    /// [`check`](Self::check) runs the code of the libraries `libcuda.so.1` and `libnvidia-ml.so.1` below the folder, or where links there
    /// lead, in this process. It must be sound to load and call them as NVIDIA's.
    ///
    /// ```
    /// use candle_headroom_environment::Environment;
    ///
    /// let root = std::env::temp_dir().join(format!("headroom-root-{}", std::process::id()));
    /// std::fs::create_dir_all(root.join("proc"))?;
    /// std::fs::write(root.join("proc/meminfo"), "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\n")?;
    ///
    /// // SAFETY: the folder has no libraries.
    /// let report = unsafe { Environment::new().root(&root) }.check();
    /// let mut findings = report.findings().iter();
    /// assert!(findings.any(|finding| finding.seen.ends_with("12.0 GiB free of 16.0 GiB")));
    /// assert_eq!(report.summary(), "training will run on the CPU: this machine has no NVIDIA GPU");
    /// # std::fs::remove_dir_all(root)?;
    /// # Ok::<_, std::io::Error>(())
    /// ```
    #[must_use]
    #[allow(unsafe_code, reason = "it names libraries to run")]
    pub unsafe fn root(mut self, root: impl Into<PathBuf>) -> Self {
        self.source.root = root.into();
        self
    }

    /// Uses these variables instead of the process's own, including `PATH` and `LD_LIBRARY_PATH`. The loader and libcuda still read the
    /// process's own.
    ///
    /// ```
    /// use candle_headroom_environment::Environment;
    ///
    /// // As a job would see it whose script names a toolkit that this machine lacks.
    /// let variables = std::env::vars().filter(|(name, _)| name != "CUDA_HOME");
    /// let variables = variables.chain([("CUDA_HOME".to_owned(), "/opt/cuda-9.9".to_owned())]);
    /// let report = Environment::new().variables(variables).check();
    /// let mut findings = report.findings().iter();
    /// assert!(findings.any(|finding| finding.code.id == "HR-503" && finding.seen == "CUDA_HOME=/opt/cuda-9.9"));
    /// ```
    #[must_use]
    pub fn variables<N: Into<String>, V: Into<String>>(
        mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let variables = variables.into_iter();
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        self.source.variables = variables.collect();
        self
    }

    /// Also checks whether the driver and the GPUs can run these kernels, given as the text of a PTX file. A build with the feature `cuda`
    /// checks candle's kernels and its own by default.
    ///
    /// ```
    /// use candle_headroom_environment::{Environment, Finding};
    ///
    /// let ptx = ".version 8.0\n.target sm_80\n.address_size 64\n";
    /// let report = Environment::new().kernels("our kernels", ptx).check();
    /// let unknown = |finding: &Finding| finding.code.id == "HR-310" && finding.seen.starts_with("our kernels");
    /// assert!(!report.findings().iter().any(unknown)); // the version and the target were read
    /// ```
    #[must_use]
    pub fn kernels(mut self, name: &str, ptx: &str) -> Self {
        self.source.kernels.push(Kernels::read(name, ptx, false));
        self
    }

    /// Also reports what several ranks need: NCCL, MPI, the ways between GPUs and nodes. Without this it does so where ranks seem to be
    /// intended: a launcher such as `mpirun` or torchrun started the process, it sees several GPUs, or the machine has InfiniBand.
    ///
    /// ```
    /// use candle_headroom_environment::{Environment, Requirement};
    ///
    /// let report = Environment::new().for_ranks().check();
    /// for obstacle in report.obstacles(Requirement::Ranks) {
    ///     eprintln!("{}: {}", obstacle.code.title, obstacle.seen);
    /// }
    /// let mpi = ["HR-820", "HR-821"]; // it is found, or not installed completely
    /// assert!(report.findings().iter().any(|finding| mpi.contains(&finding.code.id)));
    /// ```
    #[must_use]
    pub fn for_ranks(mut self) -> Self {
        self.source.for_ranks = true;
        self
    }

    /// Limits the time of all probes together, 30 seconds by default. The smoke test may take as long again.
    ///
    /// What has not answered by then is a finding, `HR-001`, and everything else is in the report.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    ///
    /// use candle_headroom_environment::Environment;
    ///
    /// let started = Instant::now();
    /// let report = Environment::new().time_limit(Duration::from_secs(5)).check();
    /// println!("{}", report.summary());
    /// assert!(started.elapsed() < Duration::from_secs(30)); // also where a driver hangs
    /// ```
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        // The clock cannot represent every limit.
        const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
        self.time_limit = limit.min(YEAR);
        self
    }

    /// Checks everything. What could not be checked is a finding too.
    ///
    /// This initializes libcuda, as creating a candle device would: from then on a change of `CUDA_VISIBLE_DEVICES` has no effect on this
    /// process, and a forked child must not use CUDA. Nothing is allocated on a GPU.
    ///
    /// ```
    /// use candle_headroom_environment::{Environment, Severity};
    ///
    /// let report = Environment::new().check();
    /// for finding in report.findings().iter().filter(|finding| finding.severity() >= Severity::Warning) {
    ///     println!("{}: {}", finding.code.title, finding.next_step);
    /// }
    /// assert!(report.findings().iter().any(|finding| finding.code.id == "HR-800")); // how this program was built
    /// ```
    pub fn check(&self) -> Report {
        let mut findings = Findings::default();
        let source = Arc::new(self.source.clone());
        let facts = gather(source, Instant::now() + self.time_limit, &mut findings);
        judge::judge(&facts, &mut findings);
        let words = redact::private_words(&self.source);
        Report::new(findings, facts.all_gpus(), Versions::of(&facts), words)
    }

    /// Works on the CUDA device with this ordinal, by libcuda: allocates, launches a small kernel in the PTX version of each of the
    /// [`kernels`](Self::kernels), reads back, and compares.
    ///
    /// The finding is `HR-900` if all is well.
    ///
    /// ```no_run
    /// use candle_headroom_environment::Environment;
    ///
    /// let finding = Environment::new().smoke_test(0);
    /// println!("{}: {}", finding.code.title, finding.seen);
    /// ```
    pub fn smoke_test(&self, ordinal: u32) -> Finding {
        smoke::run(&self.source, ordinal, Instant::now() + self.time_limit)
    }
}

impl Default for Environment {
    fn default() -> Self {
        Self::new()
    }
}
