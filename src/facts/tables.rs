//! The facts, as data. Each table names its source and the date at which it was read.

use super::XidAction::{
    CheckNvlink, CheckPower, FollowOther, Ignore, Reboot, ResetGpu, RestartApplication, SaidInText,
    UpdateSoftware,
};
use super::{ClockReason, Driver, Status, Version, Weight};

const fn v(major: u32, minor: u32, patch: u32) -> Version {
    Version::new([major, minor, patch])
}

const fn driver(cuda: Version, linux: Version) -> Driver {
    Driver { cuda, linux }
}

/// The Linux driver packaged with each release of the toolkit, newest first. It is needed in full for PTX made by that release.
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

/// The oldest Linux driver on which the libraries of a major version start (minor-version compatibility). PTX is not covered by it.
/// NVIDIA, CUDA Compatibility, docs.nvidia.com/deploy/cuda-compatibility; 2026-11.
pub(crate) const MINOR_VERSION_FLOORS: &[(u32, Version)] = &[
    (13, v(580, 0, 0)),
    (12, v(525, 60, 13)),
    (11, v(450, 80, 2)),
];

/// The version of PTX that each release of the toolkit brought, and so the least that a driver has to support.
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

const fn status(
    number: u32,
    name: &'static str,
    cause: &'static str,
    remedy: &'static str,
) -> Status {
    Status {
        number,
        name,
        cause,
        remedy,
    }
}

const APPLICATION_BUG: &str = "run the program under compute-sanitizer to find the kernel";
const HARDWARE: &str =
    "check `nvidia-smi -q -d ECC` and the kernel log for Xid messages; the GPU may need a reset";
const MPS: &str = "look into the MPS server's log, and restart it: `echo quit | nvidia-cuda-mps-control`, then `nvidia-cuda-mps-control -d`";
const RELOAD: &str =
    "restart containers, then reload the kernel module or reboot, so that both are of one version";

/// Statuses of the CUDA driver that say something about the machine, the build or the device.
/// NVIDIA, CUDA Driver API, `CUresult`, docs.nvidia.com/cuda/cuda-driver-api; names and numbers as in CUDA 13; 2026-11.
pub(crate) const CUDA: &[Status] = &[
    status(
        2,
        "CUDA_ERROR_OUT_OF_MEMORY",
        "the device's memory, a limit, or page-locked host memory is used up",
        "use smaller work or a smaller model, or free what other processes hold: `nvidia-smi` lists them",
    ),
    status(
        3,
        "CUDA_ERROR_NOT_INITIALIZED",
        "the driver was not initialised in this process",
        "create the device in the process that uses it: a fork does not inherit it",
    ),
    status(
        34,
        "CUDA_ERROR_STUB_LIBRARY",
        "the stub of libcuda that is meant for linking was loaded",
        "take the toolkit's `stubs` folder off LD_LIBRARY_PATH",
    ),
    status(
        36,
        "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER",
        "the driver is older than a call that the program makes",
        "update the driver, or build with an older toolkit",
    ),
    status(
        46,
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "the device is in exclusive use or is being reset",
        "check the compute mode and other processes with `nvidia-smi`",
    ),
    status(
        100,
        "CUDA_ERROR_NO_DEVICE",
        "the driver finds no GPU that this process may use",
        "check CUDA_VISIBLE_DEVICES, /dev/nvidia* and, in a container, that it was started with `--gpus all`",
    ),
    status(
        101,
        "CUDA_ERROR_INVALID_DEVICE",
        "there is no GPU of this number, or its device nodes are missing",
        "check CUDA_VISIBLE_DEVICES, the ordinal that the program asks for, and /dev/nvidia-uvm",
    ),
    status(
        102,
        "CUDA_ERROR_DEVICE_NOT_LICENSED",
        "the virtual GPU has no licence",
        "check the licence server of the virtual GPU",
    ),
    status(
        200,
        "CUDA_ERROR_INVALID_IMAGE",
        "a kernel's code is damaged",
        "build again from a clean target folder",
    ),
    status(
        209,
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "the program holds no code for this GPU",
        "build with CUDA_COMPUTE_CAP set to the GPU's compute capability",
    ),
    status(
        214,
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "an uncorrectable memory error on the GPU",
        HARDWARE,
    ),
    status(
        218,
        "CUDA_ERROR_INVALID_PTX",
        "kernels were compiled for another kind of GPU",
        "build with CUDA_COMPUTE_CAP set to the GPU's compute capability",
    ),
    status(
        220,
        "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "an uncorrectable NVLink error",
        HARDWARE,
    ),
    status(
        221,
        "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
        "the driver's compiler library libnvidia-ptxjitcompiler is missing",
        "install the driver in full; in a container add `compute` to NVIDIA_DRIVER_CAPABILITIES",
    ),
    status(
        222,
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "the kernels' PTX is newer than the driver",
        "update the driver, or build with a toolkit no newer than it",
    ),
    status(
        223,
        "CUDA_ERROR_JIT_COMPILATION_DISABLED",
        "compiling PTX is switched off",
        "unset CUDA_DISABLE_PTX_JIT and CUDA_DISABLE_JIT",
    ),
    status(
        226,
        "CUDA_ERROR_CONTAINED",
        "a memory error that the GPU contained to this process",
        HARDWARE,
    ),
    status(
        300,
        "CUDA_ERROR_INVALID_SOURCE",
        "a kernel's code cannot be read",
        "build again from a clean target folder",
    ),
    status(
        302,
        "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND",
        "a library of the driver lacks a function",
        "reinstall the driver: its libraries are of several versions",
    ),
    status(
        303,
        "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED",
        "a library of the driver does not start",
        "reinstall the driver: its libraries are of several versions",
    ),
    status(
        304,
        "CUDA_ERROR_OPERATING_SYSTEM",
        "the operating system refused the driver something",
        "check the permissions of /dev/nvidia*, and the container's device rules",
    ),
    status(
        700,
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "a kernel read or wrote an invalid address",
        APPLICATION_BUG,
    ),
    status(
        701,
        "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        "a kernel asks for more registers or shared memory than there are",
        "use a smaller block, or build for this GPU",
    ),
    status(
        702,
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "a kernel ran longer than the display watchdog allows",
        "use a GPU without a display, or smaller kernels",
    ),
    status(
        710,
        "CUDA_ERROR_ASSERT",
        "a device-side assertion failed",
        APPLICATION_BUG,
    ),
    status(
        714,
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "the GPU's call stack is corrupt",
        APPLICATION_BUG,
    ),
    status(
        715,
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "a kernel executed an illegal instruction",
        APPLICATION_BUG,
    ),
    status(
        716,
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "a kernel used a misaligned address",
        APPLICATION_BUG,
    ),
    status(
        717,
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "a kernel used an address of the wrong space",
        APPLICATION_BUG,
    ),
    status(
        718,
        "CUDA_ERROR_INVALID_PC",
        "a kernel's program counter left its address space",
        APPLICATION_BUG,
    ),
    status(
        719,
        "CUDA_ERROR_LAUNCH_FAILED",
        "a kernel failed while it ran",
        APPLICATION_BUG,
    ),
    status(
        721,
        "CUDA_ERROR_TENSOR_MEMORY_LEAK",
        "a kernel ended without freeing its tensor memory",
        APPLICATION_BUG,
    ),
    status(
        800,
        "CUDA_ERROR_NOT_PERMITTED",
        "the driver does not permit this to the process",
        "check the permissions of /dev/nvidia* and the compute mode",
    ),
    status(
        801,
        "CUDA_ERROR_NOT_SUPPORTED",
        "this GPU or driver does not offer what was asked for",
        "update the driver; under WSL or on a virtual GPU some calls are missing",
    ),
    status(
        802,
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "the NVSwitch fabric is not ready",
        "start the fabric manager of the driver's version: `sudo systemctl restart nvidia-fabricmanager`",
    ),
    status(
        803,
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "the kernel module and the user library are of different versions",
        RELOAD,
    ),
    status(
        804,
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "the forward-compatibility libcuda (cuda-compat) does not serve this GPU",
        "take the folder `compat` off LD_LIBRARY_PATH and /etc/ld.so.conf.d, so that the driver's own libcuda is loaded",
    ),
    status(
        805,
        "CUDA_ERROR_MPS_CONNECTION_FAILED",
        "the MPS server does not answer",
        MPS,
    ),
    status(
        806,
        "CUDA_ERROR_MPS_RPC_FAILURE",
        "a call to the MPS server failed",
        MPS,
    ),
    status(
        807,
        "CUDA_ERROR_MPS_SERVER_NOT_READY",
        "the MPS server is starting or recovering",
        MPS,
    ),
    status(
        808,
        "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
        "the MPS server has all the clients that it takes",
        "end other clients of the MPS server, or run without it",
    ),
    status(
        809,
        "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
        "the MPS server has all the connections that the device takes",
        "end other clients of the MPS server, or run without it",
    ),
    status(
        810,
        "CUDA_ERROR_MPS_CLIENT_TERMINATED",
        "the MPS server ended this client",
        "look into the MPS server's log",
    ),
    status(
        919,
        "CUDA_ERROR_FABRIC_NOT_READY",
        "the NVLink fabric is not ready",
        "wait for the fabric manager: `nvidia-smi -q` shows the fabric's state",
    ),
    status(
        999,
        "CUDA_ERROR_UNKNOWN",
        "the driver failed without saying why",
        "look into the kernel log; after suspend reload the module nvidia_uvm, else reboot",
    ),
];

/// NVML's return codes.
/// NVIDIA, NVML API Reference, `nvmlReturn_t`, and DCGM's testing/python3/dcgm_nvml.py; 2026-11.
pub(crate) const NVML: &[Status] = &[
    status(
        1,
        "NVML_ERROR_UNINITIALIZED",
        "NVML was not started",
        "report this: the checker starts it",
    ),
    status(
        2,
        "NVML_ERROR_INVALID_ARGUMENT",
        "NVML refuses the question",
        "report this with the driver's version",
    ),
    status(
        3,
        "NVML_ERROR_NOT_SUPPORTED",
        "this GPU or driver does not have it",
        "nothing: the value stays unknown",
    ),
    status(
        4,
        "NVML_ERROR_NO_PERMISSION",
        "this user may not ask",
        "give the user access to /dev/nvidia*, or ask as root",
    ),
    status(
        5,
        "NVML_ERROR_ALREADY_INITIALIZED",
        "NVML had been started already",
        "update the driver: this code is from before 2012",
    ),
    status(
        6,
        "NVML_ERROR_NOT_FOUND",
        "NVML does not know this device or value",
        "nothing: the value stays unknown",
    ),
    status(
        7,
        "NVML_ERROR_INSUFFICIENT_SIZE",
        "there is more to tell than there was room",
        "ask again",
    ),
    status(
        8,
        "NVML_ERROR_INSUFFICIENT_POWER",
        "the GPU's power cables are not attached",
        "attach the GPU's auxiliary power",
    ),
    status(
        9,
        "NVML_ERROR_DRIVER_NOT_LOADED",
        "the kernel module is not loaded",
        "load it: `sudo modprobe nvidia`; if that fails, `dmesg` says why",
    ),
    status(
        10,
        "NVML_ERROR_TIMEOUT",
        "the driver did not answer in time",
        "look into the kernel log for Xid messages",
    ),
    status(
        11,
        "NVML_ERROR_IRQ_ISSUE",
        "the kernel has an interrupt problem with the GPU",
        "look into the kernel log; check BIOS settings and the slot",
    ),
    status(
        12,
        "NVML_ERROR_LIBRARY_NOT_FOUND",
        "libnvidia-ml is missing or incomplete",
        "install the driver's user libraries, of the kernel module's version",
    ),
    status(
        13,
        "NVML_ERROR_FUNCTION_NOT_FOUND",
        "this NVML is too old for the question",
        "nothing, or update the driver",
    ),
    status(
        14,
        "NVML_ERROR_CORRUPTED_INFOROM",
        "the GPU's infoROM is corrupt",
        "update or re-flash the firmware with the vendor's help",
    ),
    status(
        15,
        "NVML_ERROR_GPU_IS_LOST",
        "the GPU has fallen off the bus",
        "reboot; if it comes back, check power, cooling and seating",
    ),
    status(
        16,
        "NVML_ERROR_RESET_REQUIRED",
        "the GPU needs a reset",
        "end its processes, then `sudo nvidia-smi --gpu-reset -i N`",
    ),
    status(
        17,
        "NVML_ERROR_OPERATING_SYSTEM",
        "the operating system or its control groups block the device",
        "check the container's device rules and the permissions of /dev/nvidia*",
    ),
    status(
        18,
        "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
        "the kernel module and the user library are of different versions",
        RELOAD,
    ),
    status(
        19,
        "NVML_ERROR_IN_USE",
        "the device is in use",
        "end its processes first",
    ),
    status(
        20,
        "NVML_ERROR_MEMORY",
        "NVML found no memory",
        "free host memory",
    ),
    status(
        21,
        "NVML_ERROR_NO_DATA",
        "there is nothing to tell",
        "nothing: the value stays unknown",
    ),
    status(
        22,
        "NVML_ERROR_VGPU_ECC_NOT_SUPPORTED",
        "ECC does not go with this virtual GPU",
        "switch ECC off on the host",
    ),
    status(
        23,
        "NVML_ERROR_INSUFFICIENT_RESOURCES",
        "the GPU has no resources left for it",
        "end other processes",
    ),
    status(
        24,
        "NVML_ERROR_FREQ_NOT_SUPPORTED",
        "the GPU does not have this frequency",
        "nothing: the value stays unknown",
    ),
    status(
        25,
        "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
        "this NVML is too old for the question's layout",
        "nothing, or update the driver",
    ),
    status(
        26,
        "NVML_ERROR_DEPRECATED",
        "this NVML no longer answers the question",
        "report this with the driver's version",
    ),
    status(
        27,
        "NVML_ERROR_NOT_READY",
        "the system is not ready",
        "wait, and check the fabric manager",
    ),
    status(
        28,
        "NVML_ERROR_GPU_NOT_FOUND",
        "there is no GPU",
        "check that the GPU is on the bus: `lspci -d 10de:`",
    ),
    status(
        29,
        "NVML_ERROR_INVALID_STATE",
        "the device is not in a state for it",
        "nothing: the value stays unknown",
    ),
    status(
        30,
        "NVML_ERROR_RESET_TYPE_NOT_SUPPORTED",
        "the GPU cannot be reset this way",
        "reboot instead",
    ),
    status(
        999,
        "NVML_ERROR_UNKNOWN",
        "the driver failed without saying why",
        "look into the kernel log; in a container, which loses its devices when systemd reloads, create it anew",
    ),
];

/// What an Xid calls for at once, Ampere and later.
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

/// The actions that Xid 154 names, the most specific first; it writes «changed from … to …», and «None» may stand for either.
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
/// NVIDIA, nvml.h, `nvmlClocksEventReason*`; weights as DCGM and facts of operation have them; 2026-11.
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

/// Variables that are left over from debugging or profiling, and what each does to a run.
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

/// Drivers whose newest calls for a GPU's processes write longer elements than their header says, from the first to before the second:
/// what they tell is wrong, and room by the header is too small.
/// XuehaiPan/nvitop, pull request 79 (elements of 32 bytes instead of 24, in R535). Where it ends is told differently, 535.86 or 535.98: the
/// later one is on the safe side; not checked on these drivers. 2026-11.
pub(crate) const WRONG_PROCESSES: (Version, Version) = (v(535, 43, 0), v(535, 98, 0));
