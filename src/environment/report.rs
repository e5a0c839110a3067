use std::cmp::Reverse;

use candle_core::DeviceLocation;

use super::redact::{self, Words};
use super::{Finding, Findings, Gpu, Requirement, Severity, Versions, code};

/// All findings about a machine, the worst first.
///
/// [`Display`](std::fmt::Display) writes text for a terminal; `{report:#}` adds colours by severity, as ANSI escape sequences. The report
/// can be serialized: `schema` is 1 until a field changes its meaning; fields may be added.
///
/// ```
/// use candle_headroom::environment::{Requirement, Severity};
/// use candle_headroom::Environment;
///
/// let report = Environment::new().check();
/// if report.worst() == Severity::Failure {
///     eprintln!("{report}");
/// }
/// for finding in report.obstacles(Requirement::CudaInference) {
///     eprintln!("no CUDA: {} ({})", finding.code.title, finding.seen);
/// }
/// ```
#[derive(Debug, Clone, serde::Serialize)]
pub struct Report {
    schema: u32,
    /// This crate's version.
    version: &'static str,
    summary: String,
    gpus: Vec<Gpu>,
    findings: Vec<Finding>,
    #[serde(skip)]
    versions: Versions,
    #[serde(skip)]
    words: Words,
}

impl Report {
    pub(super) fn new(
        findings: Findings,
        gpus: Vec<Gpu>,
        versions: Versions,
        words: Words,
    ) -> Self {
        let mut report = Self {
            schema: 1,
            version: env!("CARGO_PKG_VERSION"),
            summary: String::new(),
            gpus,
            findings: findings.0,
            versions,
            words,
        };
        report.update();
        report
    }

    /// All findings, the worst first, then by code and GPU.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The GPUs that NVML or CUDA lists.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// What ranks that train together must have in common.
    pub fn versions(&self) -> &Versions {
        &self.versions
    }

    /// The severity of the worst finding.
    pub fn worst(&self) -> Severity {
        let severities = self.findings.iter().map(Finding::severity);
        severities.max().unwrap_or(Severity::Ok)
    }

    /// One line: what this machine is fit for, and why for no more.
    pub fn summary(&self) -> &str {
        &self.summary
    }

    /// Whether nothing is known to prevent it. Work on a GPU also requires that CUDA has started.
    pub fn is_fit_for(&self, requirement: Requirement) -> bool {
        self.obstacles(requirement).is_empty()
    }

    /// The findings that prevent it. A finding about one GPU counts only if no other GPU is left. Only a failed
    /// [`smoke_test`](crate::environment::Environment::smoke_test) prevents work on the CPU.
    pub fn obstacles(&self, requirement: Requirement) -> Vec<Finding> {
        if requirement == Requirement::Cpu {
            let failed = (Severity::Failure, Some(DeviceLocation::Cpu));
            let is_failed = |finding: &&Finding| (finding.severity(), finding.device) == failed;
            return self.findings.iter().filter(is_failed).cloned().collect();
        }
        if requirement == Requirement::Ranks {
            return self.obstacles_to_ranks();
        }
        let mut obstacles = self.obstacles_to_cuda();
        if let (Requirement::CudaTraining { bytes }, []) = (requirement, &*obstacles) {
            obstacles.extend(self.lack_of_memory(bytes));
        }
        obstacles
    }

    /// The same report for a public bug report: without UUIDs, serial numbers, names of users and hosts, paths other than the system's
    /// own, and names of programs in kernel messages.
    pub fn redacted(&self) -> Self {
        let mut report = self.clone();
        redact::apply(&mut report.gpus, &mut report.findings, &self.words);
        report.update();
        report
    }

    /// Sorts the findings and writes the summary.
    fn update(&mut self) {
        let order = |finding: &Finding| (Reverse(finding.severity()), finding.code.id, finding.gpu);
        self.findings.sort_by_key(order);
        let obstacles = self.obstacles_to_cuda();
        let worst = obstacles.first().map(|worst| worst.code.title);
        // The findings are sorted, and of two that are equally grave the cause has a lower code than its effects.
        self.summary = match worst {
            None if cfg!(feature = "cuda") => "fit for CUDA".to_owned(),
            None => {
                "fit for CUDA; this build, without the feature `cuda`, runs on the CPU".to_owned()
            }
            Some(_) if self.has(code::NO_GPU) => {
                format!("training will run on the CPU: {}", code::NO_GPU.title)
            }
            Some(title) => format!("not fit for CUDA: {title}; the CPU can be used"),
        };
    }
}

/// Adds findings, such as that of [`smoke_test`](crate::environment::Environment::smoke_test).
impl Extend<Finding> for Report {
    fn extend<T: IntoIterator<Item = Finding>>(&mut self, findings: T) {
        self.findings.extend(findings);
        self.update();
    }
}
