use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::DeviceLocation;

use super::built;
use super::facts::Facts;
use super::finding::Finding;
use super::judge::judge;
use super::probe::ptx::Kernels;
use super::report::Report;
use super::source::Source;
use super::timed::Probe;
use super::{redact, smoke};

/// What is to be checked: this machine, unless told otherwise.
///
/// Every library is loaded when it is asked for, so a build without the feature `cuda` checks as much as one with it, on machines on
/// which a program that links CUDA would not even start. Calls that can hang run in threads of their own; one that does not end in
/// time is left behind there, and the report comes without it. At the process's end destructors of the driver's libraries may wait
/// for such a call: a program that has to end then is best ended by `_exit`, as the example `doctor` is.
///
/// ```
/// use candle_headroom::{Environment, Requirement};
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

/// A driver that wakes eight GPUs takes some seconds.
const TIME_LIMIT: Duration = Duration::from_secs(30);

impl Environment {
    /// This machine and this process's variables.
    pub fn new() -> Self {
        let mut source = Source::of_this_process();
        source.kernels = built::kernels();
        Self {
            source,
            time_limit: TIME_LIMIT,
        }
    }

    /// Reads `/proc`, `/sys`, `/dev`, `/etc` and all libraries below this folder, as a test or the check of an image does.
    ///
    /// NVML and libcuda are then loaded from there and from nowhere else, **which runs the code in them in this process**: name only
    /// folders that you would run a program from, and check an image of unknown origin where it can do no harm. Links in it are followed
    /// as the machine would follow them, and never lead out of the folder.
    #[must_use]
    pub fn root(mut self, root: impl Into<PathBuf>) -> Self {
        self.source.root = root.into();
        self
    }

    /// Uses these variables instead of the process's own, `PATH` and `LD_LIBRARY_PATH` included. libcuda itself reads the process's
    /// own all the same.
    #[must_use]
    pub fn variables<N: Into<String>, V: Into<String>>(
        mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let variables = variables.into_iter();
        self.source.variables = variables
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        self
    }

    /// Checks whether driver and GPUs can run these kernels too, given as the text of a PTX file. A build with the feature `cuda`
    /// checks candle's and its own by itself.
    ///
    /// ```
    /// use candle_headroom::Environment;
    ///
    /// let environment = Environment::new().kernels("mine", ".version 8.0\n.target sm_80\n");
    /// println!("{}", environment.check());
    /// ```
    #[must_use]
    pub fn kernels(mut self, name: &str, ptx: &str) -> Self {
        self.source.kernels.push(Kernels::read(name, ptx, false));
        self
    }

    /// How long the probes together may take, 30 seconds otherwise; the smoke test may take as long again.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Looks at everything. What could not be looked at is a finding too, and nothing is passed over without one.
    ///
    /// libcuda is initialised on the way, as creating a candle device would: from then on a change of CUDA_VISIBLE_DEVICES has no effect
    /// on this process, and a process that forks must not use CUDA in the child. Nothing is allocated on a GPU.
    pub fn check(&self) -> Report {
        let source = Arc::new(self.source.clone());
        let mut findings = Vec::new();
        let facts = Facts::gather(source, self.deadline(), &mut findings);
        findings.extend(judge(&facts));
        Report::new(findings, &facts, redact::private_words(&self.source))
    }

    /// Does real work on a device: opens it, allocates, launches a kernel, multiplies matrices, reads back, and makes one step of the fused
    /// AdamW; each result is compared with what it must be.
    ///
    /// A CUDA device needs the feature `cuda`. The finding is `HR-900` where all is well.
    ///
    /// ```
    /// use candle_core::DeviceLocation;
    /// use candle_headroom::Environment;
    ///
    /// let finding = Environment::new().smoke_test(DeviceLocation::Cpu);
    /// assert_eq!(finding.code.id, "HR-900");
    /// ```
    pub fn smoke_test(&self, device: DeviceLocation) -> Finding {
        let source = Arc::new(self.source.clone());
        let probe = Probe::start("the smoke test", &source, move |_| smoke::test(device));
        smoke::finish(probe, device, self.deadline())
    }

    /// A limit beyond what the clock can count is none.
    fn deadline(&self) -> Instant {
        const FAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
        let now = Instant::now();
        now.checked_add(self.time_limit)
            .unwrap_or_else(|| now + FAR)
    }
}

impl Default for Environment {
    fn default() -> Self {
        Self::new()
    }
}
