//! Findings and their kinds.
//!
//! The texts of a kind are a row of `findings.tsv`, which the compiler reads: a row with other fields, an unknown severity and an id that the
//! table lacks end the build. A test compares `docs/reference/environment-codes.md` with the table. A finding adds what was seen on a machine, and
//! may replace the next step and the command by better ones for the case; `-i N` in a command stands for the GPU that it is about.

use std::borrow::{Borrow, Cow};
use std::fmt;

use serde::de::{Deserializer, Error};

use crate::facts::{Status, table};
use crate::patience::Unfinished;

/// The severity of a finding, ordered from harmless to grave.
///
/// ```
/// use candle_headroom_environment::Severity;
///
/// assert!(Severity::Warning < Severity::Failure);
/// assert_eq!(Severity::Warning.to_string(), "warning");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Severity {
    /// Checked, without a problem.
    Ok,
    /// Good to know; requires no action.
    Note,
    /// Works, but worse than it could, or is about to fail.
    Warning,
    /// Does not work.
    Failure,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Failure => "failure",
        })
    }
}

/// A kind of finding: its texts, apart from what was seen on a machine. docs/reference/environment-codes.md lists all kinds.
///
/// ```
/// use candle_headroom_environment::{FindingCode, Severity};
///
/// let known = FindingCode::all().iter().find(|code| code.id == "HR-104");
/// let mismatch = known.expect("an id never goes");
/// assert_eq!(mismatch.title, "the kernel module and the user libraries have different versions");
/// assert!(mismatch.severity == Severity::Failure && mismatch.prevents_cuda);
/// assert!(mismatch.leads_to.contains("every CUDA program fails at start (803)"));
/// ```
#[derive(Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[non_exhaustive]
pub struct FindingCode {
    /// Such as `HR-104`. An id never changes its meaning.
    #[serde(rename = "code")]
    pub id: &'static str,
    /// The severity of such a finding.
    pub severity: Severity,
    /// Whether nothing can run on a GPU because of it: on the finding's GPU if it names one, on any otherwise. It need not be grave.
    pub prevents_cuda: bool,
    /// What was found, in a few words.
    pub title: &'static str,
    /// The consequences.
    pub leads_to: &'static str,
    /// What to do about it; empty if nothing has to be done.
    #[serde(skip)]
    pub next_step: &'static str,
    /// A command that does it or looks further; empty if there is none.
    #[serde(skip)]
    pub command: &'static str,
}

impl FindingCode {
    /// All kinds of findings, ordered by id.
    ///
    /// ```
    /// use candle_headroom_environment::FindingCode;
    ///
    /// for code in FindingCode::all() {
    ///     println!("{}: {}; {}", code.id, code.title, code.next_step);
    /// }
    /// assert!(FindingCode::all().is_sorted_by_key(|code| code.id));
    /// ```
    pub fn all() -> &'static [&'static FindingCode] {
        ALL
    }
}

/// The kinds of findings: id, severity, `yes` if it prevents CUDA, title, consequences, next step and command.
static ROWS: [[&str; 7]; 136] = table(include_str!("findings.tsv"));

/// Reads the row of this id. It is called in constants only, so its panics are compile errors.
#[expect(
    clippy::panic,
    reason = "it runs in constants, where that ends the build"
)]
const fn read(id: &str) -> FindingCode {
    let mut index = 0;
    while !is_same(ROWS[index][0].as_bytes(), id.as_bytes()) {
        index += 1;
    }
    let [id, severity, prevents, title, leads_to, next_step, command] = ROWS[index];
    FindingCode {
        id,
        severity: match severity.as_bytes() {
            b"ok" => Severity::Ok,
            b"note" => Severity::Note,
            b"warning" => Severity::Warning,
            b"failure" => Severity::Failure,
            _ => panic!("a severity in findings.tsv is unknown"),
        },
        prevents_cuda: !prevents.is_empty(),
        title,
        leads_to,
        next_step,
        command,
    }
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    match (one, other) {
        ([a, one @ ..], [b, other @ ..]) => *a == *b && is_same(one, other),
        _ => one.is_empty() && other.is_empty(),
    }
}

/// The kind of finding for work without a result.
pub(super) fn unfinished(reason: Unfinished) -> &'static FindingCode {
    match reason {
        Unfinished::TimedOut => PROBE_TIMED_OUT,
        Unfinished::Stopped => PROBE_STOPPED,
    }
}

macro_rules! names {
    ($($name:ident = $id:literal,)*) => {
        $(pub(super) static $name: &FindingCode = &read($id);)*
        static ALL: &[&FindingCode] = &[$($name),*];
    };
}

names! {
    PROBE_TIMED_OUT = "HR-001", PROBE_STOPPED = "HR-002",
    DRIVER_LOADED = "HR-100", NO_GPU = "HR-101", MODULE_NOT_LOADED = "HR-102", NOUVEAU = "HR-103",
    MODULE_MISMATCH = "HR-104", NODES_MISSING = "HR-105", UVM_MISSING = "HR-106", NODES_DENIED = "HR-107",
    WSL = "HR-108", WSL_BROKEN = "HR-109", XID_HARDWARE = "HR-110", XID_APPLICATION = "HR-111",
    XID_OTHER = "HR-112", LOG_UNREADABLE = "HR-113", LOG_CLEAN = "HR-114", CONTAINER_WITHOUT_RUNTIME = "HR-115",
    CONTAINER = "HR-116", CONTAINER_LOST_DEVICES = "HR-117", PASSED_THROUGH = "HR-118",
    GPU = "HR-200", NVML_MISSING = "HR-201", NVML_FAILS = "HR-202", GPU_LOST = "HR-203", MIG = "HR-204",
    PERSISTENCE_OFF = "HR-205", COMPUTE_EXCLUSIVE = "HR-206", COMPUTE_PROHIBITED = "HR-207",
    ECC_ERRORS = "HR-208", ECC_HISTORY = "HR-209", REPAIR_PENDING = "HR-210", REMAP_FAILED = "HR-211",
    ECC_OFF = "HR-212", HOT = "HR-213", CLOCKS_HARDWARE = "HR-214", CLOCKS_SOFTWARE = "HR-215",
    CLOCKS_OTHER = "HR-216", PCIE_NARROW = "HR-217", NEIGHBOUR = "HR-218", MEMORY_UNKNOWN = "HR-219",
    FIELDS_UNKNOWN = "HR-220", PROCESSES_WRONG = "HR-221", INFOROM = "HR-222", POWER_CABLES = "HR-223",
    GRAPHICS = "HR-224", PCIE_REPLAYS = "HR-225", MANY_RETIRED = "HR-226",
    CUDA_STARTS = "HR-300", LIBCUDA_MISSING = "HR-301", STUB = "HR-302", NO_DEVICE = "HR-303", COMPAT = "HR-304",
    FABRIC = "HR-305", MPS = "HR-306", CUDA_FAILS = "HR-307", PTX_TOO_NEW = "HR-308", PTX_WRONG_TARGET = "HR-309",
    PTX_UNKNOWN = "HR-310", MACHINE_CODE = "HR-311", KERNELS_FIT = "HR-312", DRIVER_TOO_OLD = "HR-313",
    OLD_POOLS = "HR-314", OLD_GPU = "HR-315",
    LIBRARIES_FOUND = "HR-400", LIBRARIES_MISSING = "HR-401", LIBRARIES_NOT_NEEDED = "HR-402",
    LIBRARY_TWICE = "HR-403", LIBRARIES_MIXED = "HR-404", STUBS_ON_PATH = "HR-405", JIT_MISSING = "HR-406",
    OPTIONAL_MISSING = "HR-407", COMPAT_ON_PATH = "HR-408", CUDNN_TOO_NEW = "HR-409", PATH_NOWHERE = "HR-410",
    TOOLKIT = "HR-500", NO_TOOLKIT = "HR-501", TOOLKITS_DISAGREE = "HR-502", TOOLKIT_NOWHERE = "HR-503",
    TOOLKIT_TOO_NEW = "HR-504", COMPUTE_CAP = "HR-505", NO_COMPILER = "HR-506",
    VARIABLES_FINE = "HR-600", HIDES_ALL = "HR-601", HIDES_REST = "HR-602", NAMED_TWICE = "HR-603",
    LAUNCH_BLOCKING = "HR-604", DEBUGGING = "HR-605", JIT_DISABLED = "HR-606", CACHE_DISABLED = "HR-607",
    CONTAINER_HIDES = "HR-608", CONTAINER_CAPABILITIES = "HR-609", DEVICE_ORDER = "HR-610", MPS_LIMITS = "HR-611",
    CACHE_READ_ONLY = "HR-612",
    HOST = "HR-700", CGROUP_LIMIT = "HR-701", LOW_MEMORY = "HR-702", SWAPPING = "HR-703", SHM_SMALL = "HR-704",
    HOST_UNKNOWN = "HR-705",
    BUILT = "HR-800",
    NCCL = "HR-810", NCCL_MISSING = "HR-811", NCCL_BROKEN = "HR-812", NCCL_TOO_NEW = "HR-813",
    NCCL_RESTRICTED = "HR-814", NCCL_INTERFACE = "HR-815",
    MPI = "HR-820", MPI_INCOMPLETE = "HR-821", MPI_MIXED = "HR-822", MPI_ROOT = "HR-823", MPI_NOT_BUILT = "HR-824",
    SHM_TOO_SMALL = "HR-830", PEERS = "HR-831", NO_PEERS = "HR-832",
    INFINIBAND = "HR-840", PORTS_DOWN = "HR-841", NO_PORT = "HR-842", PORTS_UNEQUAL = "HR-843", NO_GPUDIRECT = "HR-844",
    LOCK_LIMIT = "HR-845",
    LAUNCH = "HR-850", LOCAL_RANK = "HR-851",
    BUILDS_DIFFER = "HR-860", NCCL_DIFFERS = "HR-861", MPI_DIFFERS = "HR-862", DRIVERS_DIFFER = "HR-863",
    GPUS_DIFFER = "HR-864",
    SMOKE_PASSED = "HR-900", SMOKE_FAILED = "HR-901", SMOKE_WRONG = "HR-902", NOT_ENOUGH_MEMORY = "HR-910",
    MEMORY_NOT_TOLD = "HR-911", NO_USABLE_GPU = "HR-912", NO_ENGINE = "HR-913",
}

/// A condition of the machine: what was seen, the consequences, and what to do next.
///
/// Its texts are for a reader; a program compares `code.id`, as `HR-104`, which never changes its meaning. Serialized, it has the texts of
/// its code as fields; what is read back is known by its id, and an id that this version lacks is an error.
///
/// ```
/// use candle_headroom_environment::{Environment, Finding};
///
/// for finding in Environment::new().check().findings() {
///     println!("{} {}: {}", finding.severity(), finding.code.id, finding.seen);
///     if !finding.command.is_empty() {
///         println!("  $ {}", finding.command);
///     }
///     let json = serde_json::to_string(finding)?;
///     assert_eq!(serde_json::from_str::<Finding>(&json)?, *finding);
/// }
/// # Ok::<_, serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Finding {
    /// The kind of finding.
    #[serde(flatten, deserialize_with = "known")]
    pub code: &'static FindingCode,
    /// NVML's index of the GPU that it is about; `None` for the machine.
    pub gpu: Option<u32>,
    /// CUDA's ordinal of the device that it is about, for results of a smoke test.
    pub ordinal: Option<u32>,
    /// The evidence.
    pub seen: String,
    /// What to do next; empty if nothing has to be done.
    pub next_step: Cow<'static, str>,
    /// A command that does it or looks further; empty if there is none.
    pub command: Cow<'static, str>,
}

impl Finding {
    pub(super) fn new(code: Kind, seen: impl Into<String>) -> Self {
        Self {
            code,
            gpu: None,
            ordinal: None,
            seen: seen.into(),
            next_step: code.next_step.into(),
            command: code.command.into(),
        }
    }

    /// The severity of its code.
    ///
    /// ```
    /// use candle_headroom_environment::{Severity, Versions};
    ///
    /// let other = Versions { mpi: Some("libmpi.so.40".to_owned()), ..Versions::default() };
    /// let found = Versions::differences(&[Versions::default(), other]);
    /// assert_eq!(found[0].severity(), Severity::Failure);
    /// ```
    pub fn severity(&self) -> Severity {
        self.code.severity
    }

    /// Makes it about one GPU, whose index goes into the command.
    pub(super) fn set_gpu(&mut self, gpu: u32) {
        self.gpu = Some(gpu);
        if self.command.contains(" -i N") {
            let command = self.command.replace(" -i N", &format!(" -i {gpu}"));
            self.command = command.into();
        }
    }
}

/// The kind of finding with the id that was read, which must be one of this version's.
fn known<'de, D: Deserializer<'de>>(from: D) -> Result<&'static FindingCode, D::Error> {
    #[derive(serde::Deserialize)]
    struct Id {
        code: String,
    }
    let Id { code } = serde::Deserialize::deserialize(from)?;
    let mut all = FindingCode::all().iter().copied();
    let found = all.find(|known| known.id == code);
    found.ok_or_else(|| D::Error::custom(format!("no finding is called `{code}`")))
}

/// A status with its name and cause, if they are known.
pub(super) fn answer(call: &str, number: u32, status: Option<Status>) -> String {
    match status {
        Some(status) => format!("{call} returns {number} {}: {}", status.name, status.cause),
        None => format!("{call} returns {number}, an unknown status"),
    }
}

/// A value between two texts; nothing without one.
pub(super) fn around(before: &str, value: Option<impl fmt::Display>, after: &str) -> String {
    value.map_or(String::new(), |value| format!("{before}{value}{after}"))
}

pub(super) fn joined(parts: impl IntoIterator<Item = impl Borrow<str>>, by: &str) -> String {
    parts.into_iter().collect::<Vec<_>>().join(by)
}

type Kind = &'static FindingCode;

/// The findings of a check.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn add(&mut self, code: Kind, seen: impl Into<String>) {
        self.begin(code, seen);
    }

    /// Adds a finding for the caller to complete.
    pub(super) fn begin(&mut self, code: Kind, seen: impl Into<String>) -> &mut Finding {
        let last = self.0.len();
        self.0.push(Finding::new(code, seen));
        &mut self.0[last]
    }

    /// Adds a finding that lists parts, unless there are none.
    pub(super) fn list(&mut self, code: Kind, parts: impl IntoIterator<Item = impl Borrow<str>>) {
        let seen = joined(parts, ", ");
        if !seen.is_empty() {
            self.add(code, seen);
        }
    }

    /// Adds a finding about a status, with the status's remedy.
    pub(super) fn answer(
        &mut self,
        code: Kind,
        (call, number): (&str, u32),
        status: fn(u32) -> Option<Status>,
    ) {
        const UNKNOWN: &str =
            "look the status up in NVIDIA's documentation; this version does not know it";
        let status = status(number);
        let finding = self.begin(code, answer(call, number, status));
        finding.next_step = status.map_or(UNKNOWN, |status| status.remedy).into();
    }
}
