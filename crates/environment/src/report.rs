//! The report: findings in order, what prevents which kind of work, and the text for a terminal.
//!
//! A finding prevents CUDA by its kind. One about a GPU counts only if no visible GPU is left without such a finding, so that a broken GPU beside a
//! good one is told and is no obstacle. The summary is the title of the worst obstacle; of two that are equally grave the cause has the lower id.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use bytesize::ByteSize;

use super::redact::{self, Words};
use super::{Finding, FindingCode, Findings, Gpu, Severity, Versions, code};

/// All findings about a machine, the worst first.
///
/// [`Display`](std::fmt::Display) writes text for a terminal; `{report:#}` adds colours by severity, as ANSI escape sequences. The report
/// can be serialized: `schema` is 1 until a field changes its meaning; fields may be added.
///
/// ```
/// use candle_headroom_environment::{Requirement, Severity};
/// use candle_headroom_environment::Environment;
///
/// let report = Environment::new().check();
/// if report.worst() == Severity::Failure {
///     eprintln!("{report}");
/// }
/// for finding in report.obstacles(Requirement::CudaInference) {
///     eprintln!("no CUDA: {} ({})", finding.code.title, finding.seen);
/// }
/// assert_eq!(serde_json::to_value(&report)?["schema"], 1);
/// # Ok::<_, serde_json::Error>(())
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

    /// All findings, the worst first, then by code and GPU. There is at least one.
    ///
    /// ```
    /// use candle_headroom_environment::Environment;
    ///
    /// let report = Environment::new().check();
    /// let findings = report.findings();
    /// assert!(findings.is_sorted_by(|one, next| one.severity() >= next.severity()));
    /// ```
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The GPUs that NVML or CUDA lists.
    ///
    /// ```
    /// use candle_headroom_environment::{ByteSize, Environment};
    ///
    /// for gpu in Environment::new().check().gpus() {
    ///     let name = gpu.name.as_deref().unwrap_or("unknown");
    ///     let free = gpu.memory_free.map(ByteSize); // bytes
    ///     println!("GPU {}: {name}, free: {free:?}", gpu.index);
    ///     assert!(gpu.memory_free <= gpu.memory_total);
    /// }
    /// ```
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// What ranks that train together must have in common, as this process has it.
    ///
    /// ```
    /// use candle_headroom_environment::{Environment, Versions};
    ///
    /// let report = Environment::new().check();
    /// let ranks = [report.versions().clone(), report.versions().clone()];
    /// assert!(Versions::differences(&ranks).is_empty());
    /// ```
    pub fn versions(&self) -> &Versions {
        &self.versions
    }

    /// The severity of the worst finding.
    ///
    /// ```
    /// use candle_headroom_environment::{Environment, Severity};
    ///
    /// // The exit status of a health check.
    /// let report = Environment::new().check();
    /// let status = i32::from(report.worst() >= Severity::Failure);
    /// let failed = report.findings().iter().any(|finding| finding.severity() == Severity::Failure);
    /// assert_eq!(status, i32::from(failed));
    /// ```
    pub fn worst(&self) -> Severity {
        let severities = self.findings.iter().map(Finding::severity);
        severities.max().unwrap_or(Severity::Ok)
    }

    /// One line: what this machine is fit for, and why for no more. It is also the first line of the text.
    ///
    /// ```
    /// use candle_headroom_environment::Environment;
    ///
    /// let report = Environment::new().check();
    /// let text = report.to_string();
    /// assert!(text.lines().next().is_some_and(|line| line.ends_with(report.summary())));
    /// ```
    pub fn summary(&self) -> &str {
        &self.summary
    }

    /// Whether nothing is known to prevent it. Work on a GPU also requires that CUDA has started.
    ///
    /// ```
    /// use candle_headroom_environment::{ByteSize, Environment, Requirement};
    ///
    /// let report = Environment::new().check();
    /// let training = Requirement::cuda_training(ByteSize::gib(8).as_u64());
    /// let device = if report.is_fit_for(training) { "cuda" } else { "cpu" };
    /// assert_eq!(device == "cuda", report.obstacles(training).is_empty());
    /// ```
    pub fn is_fit_for(&self, requirement: Requirement) -> bool {
        self.obstacles(requirement).is_empty()
    }

    /// The findings that prevent it. A finding about one GPU counts only if no other GPU is left. Nothing
    /// prevents work on the CPU.
    ///
    /// ```
    /// use candle_headroom_environment::{ByteSize, Environment, Requirement};
    ///
    /// let report = Environment::new().check();
    /// let training = Requirement::cuda_training(ByteSize::pib(1).as_u64()); // more than any GPU has
    /// for obstacle in report.obstacles(training) {
    ///     eprintln!("{} ({}): {}", obstacle.code.title, obstacle.seen, obstacle.next_step);
    /// }
    /// assert!(!report.obstacles(training).is_empty());
    /// assert!(report.obstacles(Requirement::Cpu).is_empty());
    /// ```
    pub fn obstacles(&self, requirement: Requirement) -> Vec<Finding> {
        match requirement {
            Requirement::Cpu => Vec::new(),
            Requirement::Ranks => self.obstacles_to_ranks(),
            Requirement::CudaInference => self.obstacles_to_cuda(),
            Requirement::CudaTraining { bytes } => match self.obstacles_to_cuda() {
                none if none.is_empty() => Vec::from_iter(self.lack_of_memory(bytes)),
                obstacles => obstacles,
            },
        }
    }

    /// The same report for a public bug report: without UUIDs, serial numbers, names of users and hosts, paths other than the system's
    /// own, and names of programs in kernel messages.
    ///
    /// ```
    /// use candle_headroom_environment::Environment;
    ///
    /// let variables = [("USER", "alice"), ("CUDA_HOME", "/home/alice/cuda")];
    /// let report = Environment::new().variables(variables).check();
    /// assert!(report.to_string().contains("CUDA_HOME=/home/alice/cuda")); // a folder that does not exist
    /// println!("{}", report.redacted()); // for a public issue
    /// assert!(!report.redacted().to_string().contains("alice"));
    /// ```
    pub fn redacted(&self) -> Self {
        let mut report = self.clone();
        let words = std::mem::take(&mut report.words);
        redact::apply(&mut report.gpus, &mut report.findings, words);
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

/// What prevents work, for `Report::obstacles`.
impl Report {
    fn has(&self, code: &FindingCode) -> bool {
        self.findings().iter().any(|finding| finding.code == code)
    }

    /// The GPU that a finding is about; `None` for the machine, and for a CUDA device that is not known to be one of the GPUs.
    fn gpu_of(&self, finding: &Finding) -> Option<u32> {
        let Some(ordinal) = finding.ordinal else {
            return finding.gpu;
        };
        let mut gpus = self.gpus().iter();
        Some(gpus.find(|gpu| gpu.ordinal == Some(ordinal))?.index)
    }

    /// The findings that prevent CUDA on one GPU or on all.
    fn against_cuda(&self) -> impl Iterator<Item = &Finding> {
        let findings = self.findings().iter();
        findings.filter(|finding| finding.code.prevents_cuda)
    }

    /// GPUs that are visible and without a problem.
    fn usable(&self) -> impl Iterator<Item = &Gpu> {
        self.gpus().iter().filter(|gpu| {
            let mut against = self.against_cuda();
            gpu.visible && !against.any(|finding| self.gpu_of(finding) == Some(gpu.index))
        })
    }

    fn obstacles_to_cuda(&self) -> Vec<Finding> {
        let has_usable = self.usable().next().is_some();
        let counts = |finding: &&Finding| self.gpu_of(finding).is_none() || !has_usable;
        let mut obstacles: Vec<_> = self.against_cuda().filter(counts).cloned().collect();
        // A probe may not have finished, so the absence of obstacles is not enough.
        if obstacles.is_empty() && (!has_usable || !self.has(code::CUDA_STARTS)) {
            let seen = match self.gpus().len() {
                0 => "neither NVML nor CUDA lists a GPU".to_owned(),
                count => format!("GPUs: {count}; CUDA was not seen to start"),
            };
            obstacles.push(Finding::new(code::NO_USABLE_GPU, seen));
        }
        obstacles
    }

    /// Findings that keep a group from starting, and one if neither NCCL nor MPI can connect ranks.
    fn obstacles_to_ranks(&self) -> Vec<Finding> {
        let against = [
            code::NCCL_INTERFACE,
            code::SHM_TOO_SMALL,
            code::LAUNCH,
            code::LOCAL_RANK,
            code::BUILDS_DIFFER,
            code::NCCL_DIFFERS,
            code::MPI_DIFFERS,
        ];
        let is_against = |finding: &&Finding| against.contains(&finding.code);
        let mut obstacles: Vec<_> = self.findings().iter().filter(is_against).cloned().collect();
        let no_cuda = self.obstacles_to_cuda().into_iter().next();
        let by_nccl = match (self.has(code::NCCL), no_cuda) {
            (_, Some(obstacle)) => Err(obstacle.code.title),
            (true, None) if self.has(code::NCCL_TOO_NEW) => Err(code::NCCL_TOO_NEW.title),
            (true, None) => Ok(()),
            (false, None) => Err("not found"),
        };
        let by_mpi = match self.has(code::MPI) {
            true if self.has(code::MPI_MIXED) => Err(code::MPI_MIXED.title),
            true => Ok(()),
            false => Err("not found"),
        };
        if let (Err(nccl), Err(mpi)) = (by_nccl, by_mpi) {
            let seen = format!("NCCL: {nccl}; MPI: {mpi}");
            obstacles.push(Finding::new(code::NO_ENGINE, seen));
        }
        obstacles
    }

    fn lack_of_memory(&self, bytes: u64) -> Option<Finding> {
        let usable = self.usable();
        let free = usable.filter_map(|gpu| Some((gpu.memory_free?, gpu.index)));
        let seen = format!("required: {}", ByteSize(bytes));
        let Some((free, index)) = free.max() else {
            return Some(Finding::new(code::MEMORY_NOT_TOLD, seen));
        };
        let seen = format!("{seen}; most is free on GPU {index}: {}", ByteSize(free));
        (free < bytes).then(|| Finding::new(code::NOT_ENOUGH_MEMORY, seen))
    }
}

/// Adds findings, such as that of [`Environment::smoke_test`](crate::Environment::smoke_test). They count as those of the check.
///
/// ```
/// use candle_headroom_environment::{Environment, Versions};
///
/// // As if another rank had another NCCL.
/// let other = Versions { nccl: Some("0.0.0".to_owned()), ..Versions::default() };
/// let mut report = Environment::new().check();
/// report.extend(Versions::differences(&[Versions::default(), other]));
/// assert!(report.findings().iter().any(|finding| finding.code.id == "HR-861"));
/// ```
impl Extend<Finding> for Report {
    fn extend<T: IntoIterator<Item = Finding>>(&mut self, findings: T) {
        self.findings.extend(findings);
        self.update();
    }
}

/// What a machine is needed for.
///
/// ```
/// use candle_headroom_environment::ByteSize;
/// use candle_headroom_environment::Requirement;
///
/// assert_eq!("cuda".parse(), Ok(Requirement::CudaInference));
/// let training = Requirement::cuda_training(ByteSize::gib(8).as_u64());
/// assert_eq!("cuda,mem=8GiB".parse(), Ok(training));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Requirement {
    /// Work on the CPU: `cpu`.
    Cpu,
    /// Work on a GPU, however much memory it has free: `cuda`.
    CudaInference,
    /// Work on a GPU that needs memory: `cuda,mem=8GiB`.
    #[non_exhaustive]
    CudaTraining {
        /// The bytes that must be free on one GPU.
        bytes: u64,
    },
    /// A group of several ranks on this machine, by NCCL or MPI: `ranks`. The report must come from an environment
    /// [`for_ranks`](super::Environment::for_ranks).
    Ranks,
}

/// A text that names no requirement. Its own text names those that there are.
///
/// ```
/// use candle_headroom_environment::Requirement;
///
/// let error = "gpu".parse::<Requirement>().unwrap_err();
/// assert!(error.to_string().starts_with("unknown requirement `gpu`: use `cpu`, `cuda`"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown requirement `{0}`: use `cpu`, `cuda`, `cuda,mem=8GiB`, or `ranks`")]
pub struct UnknownRequirement(String);

impl Requirement {
    /// Work on a GPU that has this many bytes free.
    ///
    /// ```
    /// use candle_headroom_environment::{ByteSize, Requirement};
    ///
    /// let training = Requirement::cuda_training(ByteSize::gib(8).as_u64());
    /// assert_eq!(training.to_string(), "work on a GPU with 8.0 GiB of free memory");
    /// ```
    pub fn cuda_training(bytes: u64) -> Self {
        Self::CudaTraining { bytes }
    }
}

impl FromStr for Requirement {
    type Err = UnknownRequirement;

    fn from_str(text: &str) -> Result<Self, UnknownRequirement> {
        let size = || text.strip_prefix("cuda,mem=")?.parse::<ByteSize>().ok();
        match text {
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::CudaInference),
            "ranks" => Ok(Self::Ranks),
            _ => match size() {
                Some(size) => Ok(Self::cuda_training(size.as_u64())),
                None => Err(UnknownRequirement(text.to_owned())),
            },
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("work on the CPU"),
            Self::CudaInference => f.write_str("work on a GPU"),
            Self::Ranks => f.write_str("a group of several ranks"),
            Self::CudaTraining { bytes } => {
                write!(f, "work on a GPU with {} of free memory", ByteSize(*bytes))
            }
        }
    }
}

/// Columns of a line.
const WIDTH: usize = 110;
/// The column in which texts begin.
const INDENT: usize = 17;
/// The width of a label and the space behind it.
const LABEL: usize = 6;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = env!("CARGO_PKG_VERSION");
        writeln!(f, "candle-headroom {version}: {}", self.summary())?;
        let mut counts = [0; 4];
        for finding in self.findings() {
            counts[finding.severity() as usize] += 1;
        }
        let [ok, notes, warnings, failures] = counts;
        let line = format!("failures: {failures}, warnings: {warnings}, notes: {notes}, ok: {ok}");
        writeln!(f, "{line}\n")?;
        for (finding, gpus) in grouped(self.findings()) {
            write_finding(f, finding, &gpus)?;
        }
        Ok(())
    }
}

/// Findings that differ only in their GPU as one, with the indexes of all GPUs.
fn grouped(findings: &[Finding]) -> Vec<(&Finding, Vec<String>)> {
    let mut groups: Vec<(&Finding, Vec<String>)> = Vec::new();
    for finding in findings {
        let gpu = finding.gpu.map(|gpu| gpu.to_string());
        let is_alike = |(other, gpus): &&mut (&Finding, Vec<String>)| {
            !gpus.is_empty() && other.code == finding.code && other.seen == finding.seen
        };
        match groups.iter_mut().find(is_alike) {
            Some((_, gpus)) if gpu.is_some() => gpus.extend(gpu),
            _ => groups.push((finding, gpu.into_iter().collect())),
        }
    }
    groups
}

fn write_finding(f: &mut fmt::Formatter<'_>, finding: &Finding, gpus: &[String]) -> fmt::Result {
    let severity = finding.severity();
    let colour = match severity {
        Severity::Ok => "32",
        Severity::Note => "36",
        Severity::Warning => "33",
        Severity::Failure => "1;31",
    };
    match f.alternate() {
        true => write!(f, "\x1b[{colour}m{severity:<8}\x1b[0m")?,
        false => write!(f, "{severity:<8}")?,
    }
    write!(f, " {}  ", finding.code.id)?;
    let title = match gpus {
        [] => finding.code.title.to_owned(),
        [gpu] => format!("GPU {gpu}: {}", finding.code.title),
        gpus => format!("GPUs {}: {}", gpus.join(", "), finding.code.title),
    };
    if severity == Severity::Ok {
        return write_wrapped(f, &format!("{title}: {}", finding.seen), INDENT);
    }
    write_wrapped(f, &title, INDENT)?;
    for (label, text) in [
        ("seen", finding.seen.as_str()),
        ("so", finding.code.leads_to),
        ("next", &finding.next_step),
    ] {
        if !text.is_empty() {
            write!(f, "{:INDENT$}{label:<LABEL$}", "")?;
            write_wrapped(f, text, INDENT + LABEL)?;
        }
    }
    if !finding.command.is_empty() {
        // In one line, so that it can be copied.
        let command = printable(&finding.command);
        writeln!(f, "{:INDENT$}{:<LABEL$}{command}", "", "run")?;
    }
    Ok(())
}

/// Replaces control characters: files and libraries may hold escape sequences.
fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Breaks a text at spaces; further lines are indented as the first is.
fn write_wrapped(f: &mut fmt::Formatter<'_>, text: &str, indent: usize) -> fmt::Result {
    let mut column = indent;
    for (index, word) in printable(text).split_whitespace().enumerate() {
        let width = word.chars().count();
        if index > 0 && column + 1 + width > WIDTH {
            write!(f, "\n{:indent$}", "")?;
            column = indent;
        } else if index > 0 {
            f.write_str(" ")?;
            column += 1;
        }
        f.write_str(word)?;
        column += width;
    }
    f.write_str("\n")
}
