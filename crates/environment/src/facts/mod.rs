//! NVIDIA's numbers, their meaning and their remedies, for errors, the monitor and the environment checker. Each table names its source and
//! the date on which it was read.

use std::fmt;

/// A version of up to three numbers, such as a driver's 535.104.05 or a toolkit's 12.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub(crate) [u32; 3]);

impl Version {
    /// Parses numbers separated by dots; those after the third are ignored.
    pub fn parse(text: &str) -> Option<Self> {
        let parts = text.trim().split('.').map(|part| part.parse().ok());
        let parts: Vec<u32> = parts.collect::<Option<_>>()?;
        let part = |index| parts.get(index).copied().unwrap_or(0);
        Some(Self([part(0), part(1), part(2)]))
    }

    /// From CUDA's number, such as 12040 for 12.4.
    pub fn of_cuda(number: i32) -> Option<Self> {
        let number = u32::try_from(number).ok().filter(|number| *number > 0)?;
        Some(Self([number / 1000, number % 1000 / 10, 0]))
    }

    /// As others than NVIDIA's driver write it: 2.28.3.
    pub fn plain(self) -> String {
        let [major, minor, patch] = self.0;
        format!("{major}.{minor}.{patch}")
    }

    /// For a sentence.
    pub fn or_unknown(version: Option<Self>) -> String {
        version.map_or("of an unknown version".to_owned(), |version| {
            version.to_string()
        })
    }

    pub fn major(self) -> u32 {
        self.0[0]
    }

    /// Only major and minor.
    pub fn release(self) -> Self {
        Self([self.0[0], self.0[1], 0])
    }
}

/// NVIDIA writes the last number with two digits.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [major, minor, 0] => write!(f, "{major}.{minor}"),
            [major, minor, patch] => write!(f, "{major}.{minor}.{patch:02}"),
        }
    }
}

/// A status code of a library, its cause and its remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    pub number: u32,
    /// As in the library's header.
    pub name: &'static str,
    pub cause: &'static str,
    pub remedy: &'static str,
}

/// Statuses of the CUDA driver that say something about the machine, the build or the device.
/// NVIDIA, CUDA Driver API, `CUresult`, docs.nvidia.com/cuda/cuda-driver-api; names and numbers as in CUDA 13; 2026-11.
static CUDA: [[&str; 4]; 45] = table(include_str!("cuda.tsv"));

/// NVML's return codes.
/// NVIDIA, NVML API Reference, `nvmlReturn_t`, and DCGM's testing/python3/dcgm_nvml.py; 2026-11.
static NVML: [[&str; 4]; 31] = table(include_str!("nvml.tsv"));

/// The statuses of the CUDA driver, ordered by number.
pub fn cuda_statuses() -> impl Iterator<Item = Status> {
    read(&CUDA)
}

/// A status of the CUDA driver.
pub fn cuda(number: u32) -> Option<Status> {
    read(&CUDA).find(|status| status.number == number)
}

/// A return code of NVML.
pub fn nvml(number: u32) -> Option<Status> {
    read(&NVML).find(|status| status.number == number)
}

fn read(rows: &'static [[&str; 4]]) -> impl Iterator<Item = Status> {
    rows.iter().filter_map(|[number, name, cause, remedy]| {
        let number = number.parse().ok()?;
        Some(Status {
            number,
            name,
            cause,
            remedy,
        })
    })
}

/// What a message of the kernel module (Xid) requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XidAction {
    /// Nothing now, or the number is unknown.
    Nothing,
    RestartApplication,
    /// What to do with the machine, and a command for it, in which `-i N` names the GPU.
    Repair(&'static str, &'static str),
}

const RESET: XidAction = XidAction::Repair(
    "end the GPU's programs and reset it, unless that has been done since",
    "sudo nvidia-smi --gpu-reset -i N",
);
const REBOOT: XidAction = XidAction::Repair(
    "restart the machine, unless that has been done since",
    "sudo reboot",
);
const CHECK_NVLINK: XidAction =
    XidAction::Repair("check the NVLink connections", "nvidia-smi nvlink --status");

/// The immediate action for an Xid, on Ampere and later GPUs.
/// NVIDIA, Xid catalog, docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html; 2026-11.
pub fn xid(number: u32, text: &str) -> XidAction {
    match number {
        8 | 11 | 13 | 25 | 31 | 32 | 39 | 40 | 41 | 69 | 94 => XidAction::RestartApplication,
        46 | 48 | 62 | 64 | 95 | 109 | 110 | 119 | 120 | 140 | 143 | 158 => RESET,
        54 => XidAction::Repair("attach the GPU's auxiliary power", ""),
        74 => CHECK_NVLINK,
        78 => XidAction::Repair("update the driver and the firmware", "nvidia-smi"),
        79 => REBOOT,
        // The text names the action: "changed from 0x0 (None) to 0x1 (GPU Reset Required)".
        154 if text.contains("Node Reboot Required") => REBOOT,
        154 if text.contains("GPU Reset Required") => RESET,
        154 if text.contains("Drain and Reset") => RESET,
        154 if text.contains("Drain P2P") => CHECK_NVLINK,
        _ => XidAction::Nothing,
    }
}

/// Each CUDA toolkit, the PTX version that its compiler writes, and the oldest Linux driver packaged with it, which loads that PTX.
/// NVIDIA, CUDA Toolkit Release Notes, table 3 (edition of 13.2), docs.nvidia.com/cuda/cuda-toolkit-release-notes, and cuda-python,
/// cuda/bindings/utils/_ptx_utils.py; PTX 9.2 from the release notes of 13.2; 2026-11.
const RELEASES: [[&str; 3]; 22] = table(include_str!("releases.tsv"));

/// CUDA's release, the PTX version of its compiler, and its oldest driver.
pub fn releases() -> impl Iterator<Item = [Option<Version>; 3]> {
    RELEASES.iter().map(|release| release.map(Version::parse))
}

/// The first CUDA release whose driver loads PTX of this version.
pub fn cuda_of_ptx(wanted: Version) -> Option<Version> {
    releases().find_map(|[cuda, ptx, _]| cuda.filter(|_| ptx == Some(wanted)))
}

/// The oldest driver packaged with a CUDA release. Older drivers do not load PTX made by that release's compiler.
pub fn driver_of_cuda(wanted: Version) -> Option<Version> {
    releases().find_map(|[cuda, _, driver]| driver.filter(|_| cuda == Some(wanted)))
}

/// The oldest driver on which libraries of this major CUDA version start (minor-version compatibility). This does not cover PTX.
/// NVIDIA, CUDA Compatibility, docs.nvidia.com/deploy/cuda-compatibility; 2026-11.
pub fn floor_of_major(major: u32) -> Option<Version> {
    match major {
        11 => Some(Version([450, 80, 2])),
        12 => Some(Version([525, 60, 13])),
        13 => Some(Version([580, 0, 0])),
        _ => None,
    }
}

/// The oldest driver for this major version of cuDNN, built for this major version of CUDA: that CUDA's own.
/// NVIDIA, cuDNN support matrix (8.9 and 9.10), docs.nvidia.com/deeplearning/cudnn; 2026-11.
pub fn floor_of_cudnn(cudnn: u32, cuda: u32) -> Option<Version> {
    floor_of_major(cuda).filter(|_| matches!((cudnn, cuda), (9, 12) | (8, 11 | 12)))
}

/// Whether this driver's newest calls for a GPU's processes write longer elements than their header says: results and sizes are wrong.
/// XuehaiPan/nvitop, pull request 79 (elements of 32 bytes instead of 24, in R535). Sources differ on the end, 535.86 or 535.98; the
/// later one is safe. Not checked on these drivers. 2026-11.
pub fn reports_processes_wrongly(driver: Version) -> bool {
    (Version([535, 43, 0])..Version([535, 98, 0])).contains(&driver)
}

/// The rows of a table, with a tab or a line's end behind each field. Tables are read in constants only, so a panic is a compile error.
pub const fn table<const ROWS: usize, const FIELDS: usize>(
    text: &'static str,
) -> [[&'static str; FIELDS]; ROWS] {
    let mut rows = [[""; FIELDS]; ROWS];
    let (mut rest, mut index) = (text, 0);
    while index < ROWS * FIELDS {
        let mut end = 0;
        while !matches!(rest.as_bytes()[end], b'\t' | b'\n' | b'\r') {
            end += 1;
        }
        assert!(rest.as_bytes()[end] != b'\r', "a line ends in CR LF");
        let is_last = index % FIELDS == FIELDS - 1;
        assert!(
            is_last == (rest.as_bytes()[end] == b'\n'),
            "a row has other fields"
        );
        rows[index / FIELDS][index % FIELDS] = rest.split_at(end).0;
        rest = rest.split_at(end + 1).1;
        index += 1;
    }
    assert!(rest.is_empty(), "there are more rows");
    rows
}
