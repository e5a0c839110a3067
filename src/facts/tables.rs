//! Versions, Xids and clock reasons. Each table names its source and the date on which it was read.

use super::entries::XidAction::{
    CheckNvlink, CheckPower, FollowOther, Ignore, Reboot, ResetGpu, RestartApplication, SaidInText,
    UpdateSoftware,
};
use super::entries::{ClockReason, Driver, Weight};
use super::version::Version;

const fn v(major: u32, minor: u32, patch: u32) -> Version {
    Version::new([major, minor, patch])
}

const fn driver(cuda: Version, linux: Version) -> Driver {
    Driver { cuda, linux }
}

/// The Linux driver packaged with each release of the toolkit, newest first. PTX made by that release needs this driver or a later one.
/// NVIDIA, CUDA Toolkit Release Notes, table 3 (edition of 13.2), docs.nvidia.com/cuda/cuda-toolkit-release-notes; 2026-11.
pub(crate) const DRIVERS: &[Driver] = &[
    driver(v(13, 2, 0), v(595, 71, 5)),
    driver(v(13, 2, 0), v(595, 58, 3)),
    driver(v(13, 2, 0), v(595, 45, 4)),
    driver(v(13, 1, 0), v(590, 48, 1)),
    driver(v(13, 1, 0), v(590, 44, 1)),
    driver(v(13, 0, 0), v(580, 95, 5)),
    driver(v(13, 0, 0), v(580, 82, 7)),
    driver(v(13, 0, 0), v(580, 65, 6)),
    driver(v(12, 9, 0), v(575, 57, 8)),
    driver(v(12, 9, 0), v(575, 51, 3)),
    driver(v(12, 8, 0), v(570, 124, 6)),
    driver(v(12, 8, 0), v(570, 26, 0)),
    driver(v(12, 6, 0), v(560, 35, 5)),
    driver(v(12, 6, 0), v(560, 35, 3)),
    driver(v(12, 6, 0), v(560, 28, 3)),
    driver(v(12, 5, 0), v(555, 42, 6)),
    driver(v(12, 5, 0), v(555, 42, 2)),
    driver(v(12, 4, 0), v(550, 54, 15)),
    driver(v(12, 4, 0), v(550, 54, 14)),
    driver(v(12, 3, 0), v(545, 23, 8)),
    driver(v(12, 3, 0), v(545, 23, 6)),
    driver(v(12, 2, 0), v(535, 104, 5)),
    driver(v(12, 2, 0), v(535, 86, 9)),
    driver(v(12, 2, 0), v(535, 54, 3)),
    driver(v(12, 1, 0), v(530, 30, 2)),
    driver(v(12, 0, 0), v(525, 85, 12)),
    driver(v(12, 0, 0), v(525, 60, 13)),
    driver(v(11, 8, 0), v(520, 61, 5)),
    driver(v(11, 7, 0), v(515, 48, 7)),
    driver(v(11, 7, 0), v(515, 43, 4)),
    driver(v(11, 6, 0), v(510, 47, 3)),
    driver(v(11, 6, 0), v(510, 39, 1)),
    driver(v(11, 5, 0), v(495, 29, 5)),
    driver(v(11, 4, 0), v(470, 82, 1)),
    driver(v(11, 4, 0), v(470, 57, 2)),
    driver(v(11, 4, 0), v(470, 42, 1)),
    driver(v(11, 3, 0), v(465, 19, 1)),
    driver(v(11, 2, 0), v(460, 32, 3)),
    driver(v(11, 2, 0), v(460, 27, 3)),
    driver(v(11, 1, 0), v(455, 23, 0)),
    driver(v(11, 0, 0), v(450, 51, 6)),
];

/// The oldest Linux driver on which the libraries of a major version start (minor-version compatibility). This does not cover PTX.
/// NVIDIA, CUDA Compatibility, docs.nvidia.com/deploy/cuda-compatibility; 2026-11.
pub(crate) const MINOR_VERSION_FLOORS: &[(u32, Version)] = &[
    (13, v(580, 0, 0)),
    (12, v(525, 60, 13)),
    (11, v(450, 80, 2)),
];

/// The PTX version that each toolkit release introduced, which a driver must support.
/// NVIDIA, cuda-python, cuda/bindings/utils/_ptx_utils.py; 9.2 from the release notes of 13.2; 2026-11.
pub(crate) const PTX_ISA: &[(Version, Version)] = &[
    (v(7, 0, 0), v(11, 0, 0)),
    (v(7, 1, 0), v(11, 1, 0)),
    (v(7, 2, 0), v(11, 2, 0)),
    (v(7, 3, 0), v(11, 3, 0)),
    (v(7, 4, 0), v(11, 4, 0)),
    (v(7, 5, 0), v(11, 5, 0)),
    (v(7, 6, 0), v(11, 6, 0)),
    (v(7, 7, 0), v(11, 7, 0)),
    (v(7, 8, 0), v(11, 8, 0)),
    (v(8, 0, 0), v(12, 0, 0)),
    (v(8, 1, 0), v(12, 1, 0)),
    (v(8, 2, 0), v(12, 2, 0)),
    (v(8, 3, 0), v(12, 3, 0)),
    (v(8, 4, 0), v(12, 4, 0)),
    (v(8, 5, 0), v(12, 5, 0)),
    (v(8, 6, 0), v(12, 7, 0)),
    (v(8, 7, 0), v(12, 8, 0)),
    (v(8, 8, 0), v(12, 9, 0)),
    (v(9, 0, 0), v(13, 0, 0)),
    (v(9, 1, 0), v(13, 1, 0)),
    (v(9, 2, 0), v(13, 2, 0)),
];

/// cuDNN's major version, the major version of CUDA that it was built for, and the oldest driver.
/// NVIDIA, cuDNN support matrix (8.9 and 9.10), docs.nvidia.com/deeplearning/cudnn; 2026-11.
pub(crate) const CUDNN_FLOORS: &[(u32, u32, Version)] = &[
    (9, 12, v(525, 60, 13)),
    (8, 12, v(525, 60, 13)),
    (8, 11, v(450, 80, 2)),
];

/// The immediate action for an Xid, on Ampere and later GPUs.
/// NVIDIA, Xid catalog, docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html; 2026-11.
pub(super) const XID: &[(&[u32], super::XidAction)] = &[
    (
        &[8, 11, 13, 25, 31, 32, 39, 40, 41, 69, 94],
        RestartApplication,
    ),
    (&[43, 44, 63, 66, 92, 93, 121], Ignore),
    (&[45], FollowOther),
    (
        &[46, 48, 62, 64, 95, 109, 110, 119, 120, 140, 143, 158],
        ResetGpu,
    ),
    (&[54], CheckPower),
    (&[74], CheckNvlink),
    (&[78], UpdateSoftware),
    (&[79], Reboot),
    (&[154], SaidInText),
];

/// The actions that Xid 154 names, the most specific first. It writes "changed from … to …", and either may be "None".
pub(super) const XID_BY_TEXT: &[(&str, super::XidAction)] = &[
    ("Node Reboot Required", Reboot),
    ("GPU Reset Required", ResetGpu),
    ("Drain and Reset", ResetGpu),
    ("Drain P2P", CheckNvlink),
    ("None", Ignore),
];

const fn clock(bit: u64, weight: Weight, text: &'static str) -> ClockReason {
    ClockReason { bit, text, weight }
}

/// NVML's reasons for clocks below their maximum.
/// NVIDIA, nvml.h, `nvmlClocksEventReason*`; weights by DCGM and by effect; 2026-11.
pub(super) const CLOCK_REASONS: &[ClockReason] = &[
    clock(0x1, Weight::Benign, "idle"),
    clock(0x2, Weight::Benign, "clocks set by a user"),
    clock(0x4, Weight::Note, "power limit"),
    clock(0x8, Weight::Failure, "hardware slowdown"),
    clock(0x10, Weight::Benign, "synchronised boost"),
    clock(0x20, Weight::Warning, "temperature, by software"),
    clock(0x40, Weight::Failure, "temperature, by hardware"),
    clock(0x80, Weight::Failure, "power brake, by hardware"),
    clock(0x100, Weight::Benign, "display clocks"),
];

/// Debugging and profiling variables, and their effects.
/// NVIDIA, DCGM, nvvs/src/Software.cpp (`checkForBadEnvVaribles`), and CUDA's own list of variables; 2026-11.
pub(crate) const DEBUGGING_VARIABLES: &[(&str, &str)] = &[
    ("NSIGHT_CUDA_DEBUGGER", "a debugger is attached"),
    (
        "CUDA_INJECTION32_PATH",
        "a library is injected into the program",
    ),
    (
        "CUDA_INJECTION64_PATH",
        "a library is injected into the program",
    ),
    ("CUDA_AUTO_BOOST", "clocks are held"),
    (
        "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
        "faults write GPU core dumps",
    ),
    ("CUDA_COREDUMP_FILE", "faults write GPU core dumps"),
    (
        "CUDA_DEVICE_WAITS_ON_EXCEPTION",
        "a fault makes the program wait for a debugger",
    ),
    ("CUDA_PROFILE", "the profiler is on"),
    ("COMPUTE_PROFILE", "the profiler is on"),
    ("OPENCL_PROFILE", "the profiler is on"),
];

/// Drivers whose newest calls for a GPU's processes write longer elements than their header says, from the first version to before the
/// second. Their results are wrong, and a buffer sized by the header is too small.
/// XuehaiPan/nvitop, pull request 79 (elements of 32 bytes instead of 24, in R535). Sources differ on the
/// end, 535.86 or 535.98; the later one is safe. Not checked on these drivers. 2026-11.
pub(crate) const WRONG_PROCESSES: (Version, Version) = (v(535, 43, 0), v(535, 98, 0));
