use bytesize::ByteSize;
use candle_core::DeviceLocation;

use super::code::{
    CUDA_STARTS, FindingCode, MEMORY_NOT_TOLD, NO_GPU, NO_USABLE_GPU, NOT_ENOUGH_MEMORY, Severity,
};
use super::facts::Facts;
use super::finding::Finding;
use super::redact::{self, Words};
use super::requirement::Requirement;

/// All that was found, the worst first.
///
/// Its [`Display`](std::fmt::Display) is made for a terminal; [`coloured`](Self::coloured) adds colours. With the feature `serde` it
/// serialises: `schema` is 1 as long as no field changes its meaning; fields may be added.
///
/// ```
/// use candle_headroom::{Environment, Requirement, Severity};
///
/// let report = Environment::new().check();
/// if report.worst() == Severity::Failure {
///     eprintln!("{report}");
/// }
/// for finding in report.obstacles(Requirement::CudaInference) {
///     eprintln!("no CUDA: {} ({})", finding.code.title, finding.seen);
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Report {
    summary: String,
    gpus: Vec<Gpu>,
    findings: Vec<Finding>,
    words: Words,
}

/// A GPU; `None` is what nobody told.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Gpu {
    /// NVML's number, by PCI address; CUDA's where there is no NVML.
    pub index: u32,
    /// CUDA's number, where it is known which of CUDA's devices this is.
    pub ordinal: Option<u32>,
    /// Such as `NVIDIA H200`.
    pub name: Option<String>,
    /// `GPU-…`.
    pub uuid: Option<String>,
    /// The board's serial number.
    pub serial: Option<String>,
    /// On the PCI bus.
    pub pci: Option<String>,
    /// Major and minor.
    pub compute_capability: Option<(u32, u32)>,
    /// Bytes; the host's where the GPU shares them.
    pub memory_total: Option<u64>,
    /// Bytes that are free at the moment of the check; `None` for a GPU that is divided (MIG), whose instances have parts of it.
    pub memory_free: Option<u64>,
    /// Whether this process sees it: by CUDA's own list, or by CUDA_VISIBLE_DEVICES where there is none. The variable's numbers count in
    /// CUDA's order, which on machines with different GPUs need not be NVML's.
    pub visible: bool,
}

impl Report {
    pub(super) fn new(findings: Vec<Finding>, facts: &Facts, words: Words) -> Self {
        let mut report = Self {
            summary: String::new(),
            gpus: facts.all_gpus(),
            findings,
            words,
        };
        report.settle();
        report
    }

    /// All findings, the worst first, then by code and GPU.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The GPUs that NVML or CUDA told of.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// How grave the worst finding is.
    pub fn worst(&self) -> Severity {
        let severities = self.findings.iter().map(Finding::severity);
        severities.max().unwrap_or(Severity::Ok)
    }

    /// In one line what this machine is fit for, and why for no more.
    pub fn summary(&self) -> &str {
        &self.summary
    }

    /// Whether nothing is known to stand in the way. For a GPU that takes more: CUDA has to have started.
    pub fn is_fit_for(&self, requirement: Requirement) -> bool {
        self.obstacles(requirement).is_empty()
    }

    /// What stands in the way; empty where nothing does. What concerns one GPU stands in the way where no other is left, and in the
    /// CPU's way stands failed work on it alone (see [`smoke_test`](crate::Environment::smoke_test)).
    pub fn obstacles(&self, requirement: Requirement) -> Vec<Finding> {
        match requirement {
            Requirement::Cpu => {
                let of_cpu = |finding: &&Finding| {
                    finding.severity() == Severity::Failure
                        && finding.device == Some(DeviceLocation::Cpu)
                };
                self.findings.iter().filter(of_cpu).cloned().collect()
            }
            Requirement::CudaInference => self.obstacles_to_cuda(),
            Requirement::CudaTraining { bytes } => {
                let mut obstacles = self.obstacles_to_cuda();
                if obstacles.is_empty() {
                    obstacles.extend(self.lacks(bytes));
                }
                obstacles
            }
        }
    }

    /// The same without what identifies a machine or a person: UUIDs, serial numbers, the names of user and host, paths other than the
    /// system's own. For pasting into a bug report; what a program's name says in a kernel message goes too.
    pub fn redacted(&self) -> Self {
        let mut report = self.clone();
        redact::apply(&mut report.gpus, &mut report.findings, &self.words);
        report.settle();
        report
    }

    /// Puts the findings in order and sums them up.
    fn settle(&mut self) {
        self.findings.sort_by(|a, b| {
            let by_severity = b.severity().cmp(&a.severity());
            by_severity
                .then(a.code.id.cmp(b.code.id))
                .then(a.gpu.cmp(&b.gpu))
        });
        self.summary = self.summarize();
    }

    fn has(&self, code: &FindingCode) -> bool {
        self.findings.iter().any(|finding| finding.code == code)
    }

    fn summarize(&self) -> String {
        let obstacles = self.obstacles(Requirement::CudaInference);
        // Of several the first: what the others come from has the lower code.
        let worst = obstacles
            .iter()
            .rev()
            .max_by_key(|finding| finding.severity());
        match worst {
            None if cfg!(feature = "cuda") => "fit for CUDA".to_owned(),
            None => {
                "fit for CUDA; this build, without the feature `cuda`, runs on the CPU".to_owned()
            }
            Some(_) if self.has(&NO_GPU) => {
                format!("training will run on the CPU: {}", NO_GPU.title)
            }
            Some(worst) => format!(
                "not fit for CUDA: {}; the CPU can be used",
                worst.code.title
            ),
        }
    }

    /// The GPU that a finding is about; `None` for the machine, and for a device of CUDA's that is not known to be one of the GPUs.
    fn about(&self, finding: &Finding) -> Option<u32> {
        let by_ordinal = || match finding.device {
            Some(DeviceLocation::Cuda { gpu_id }) => {
                let ordinal = u32::try_from(gpu_id).ok();
                let mut gpus = self.gpus.iter();
                Some(
                    gpus.find(|gpu| gpu.ordinal.is_some() && gpu.ordinal == ordinal)?
                        .index,
                )
            }
            _ => None,
        };
        finding.gpu.or_else(by_ordinal)
    }

    /// What keeps programs off one GPU or off all. Work that failed on another kind of device says nothing about them.
    fn against_cuda(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| {
            let elsewhere = matches!(
                finding.device,
                Some(DeviceLocation::Cpu | DeviceLocation::Metal { .. })
            );
            finding.code.prevents_cuda && !elsewhere
        })
    }

    /// GPUs that are visible and in order.
    fn usable(&self) -> impl Iterator<Item = &Gpu> {
        self.gpus.iter().filter(|gpu| {
            let mut against = self.against_cuda();
            gpu.visible && !against.any(|finding| self.about(finding) == Some(gpu.index))
        })
    }

    fn obstacles_to_cuda(&self) -> Vec<Finding> {
        let has_usable = self.usable().next().is_some();
        let in_the_way = |finding: &&Finding| self.about(finding).is_none() || !has_usable;
        let mut obstacles: Vec<_> = self.against_cuda().filter(in_the_way).cloned().collect();
        // Nothing that speaks against it is not enough: a probe may not have ended.
        if obstacles.is_empty() && (!has_usable || !self.has(&CUDA_STARTS)) {
            let seen = match self.gpus.len() {
                0 => "neither NVML nor CUDA told of a GPU".to_owned(),
                count => format!("GPUs: {count}; that CUDA starts was not seen"),
            };
            obstacles.push(Finding::new(&NO_USABLE_GPU, seen));
        }
        obstacles
    }

    fn lacks(&self, bytes: u64) -> Option<Finding> {
        let most = self
            .usable()
            .filter_map(|gpu| Some((gpu.memory_free?, gpu.index)))
            .max();
        match most {
            None => Some(Finding::new(
                &MEMORY_NOT_TOLD,
                format!("required: {}", ByteSize(bytes)),
            )),
            Some((free, _)) if free >= bytes => None,
            Some((free, index)) => {
                let seen = format!(
                    "required: {}; most is free on GPU {index}: {}",
                    ByteSize(bytes),
                    ByteSize(free)
                );
                Some(Finding::new(&NOT_ENOUGH_MEMORY, seen))
            }
        }
    }
}

/// Further findings, such as that of [`smoke_test`](crate::Environment::smoke_test).
impl Extend<Finding> for Report {
    fn extend<T: IntoIterator<Item = Finding>>(&mut self, findings: T) {
        self.findings.extend(findings);
        self.settle();
    }
}
