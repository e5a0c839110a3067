//! All symptoms that the checker recognizes: a machine that shows it, and the code of the finding.

use crate::machine::{DRIVER, LIBRARIES, Machine};

pub struct Symptom {
    pub what: &'static str,
    pub code: &'static str,
    pub machine: fn() -> Machine,
}

const fn symptom(what: &'static str, code: &'static str, machine: fn() -> Machine) -> Symptom {
    Symptom {
        what,
        code,
        machine,
    }
}

/// A healthy machine whose NVML and libcuda answer something else.
macro_rules! answering {
    ($lines:expr) => {
        || Machine::healthy().answers($lines)
    };
}

/// A healthy machine with a variable.
macro_rules! with_variable {
    ($name:expr, $value:expr) => {
        || Machine::healthy().variable($name, $value)
    };
}

/// A healthy machine with lines in its kernel log.
macro_rules! logging {
    ($lines:expr) => {
        || Machine::healthy().file("/dev/kmsg", $lines)
    };
}

fn container_with_gpu() -> Machine {
    Machine::healthy().file("/.dockerenv", "")
}

/// A healthy machine whose GPUs this value hides.
fn hiding(value: &str) -> Machine {
    Machine::healthy()
        .variable("CUDA_VISIBLE_DEVICES", value)
        .answers("status.cuInit=100")
}

fn wsl() -> Machine {
    Machine::wsl().with_stand_ins_in("/usr/lib/wsl/lib")
}

pub const SYMPTOMS: &[Symptom] = &[
    // The kernel and its module
    symptom("no GPU", "HR-101", Machine::plain),
    symptom("a GPU without a driver", "HR-102", || {
        Machine::plain().with_gpu()
    }),
    symptom("NVML 9, driver not loaded", "HR-102", || {
        Machine::healthy()
            .without("/sys/module/nvidia")
            .answers("status.nvmlInit_v2=9\nstatus.cuInit=100")
    }),
    symptom("nouveau holds the GPU", "HR-103", || {
        Machine::plain().with_gpu().link(
            "/sys/bus/pci/devices/0000:18:00.0/driver",
            "../../../bus/pci/drivers/nouveau",
        )
    }),
    symptom("kernel module and library files differ", "HR-104", || {
        Machine::healthy()
            .with_module("570.124.06\n")
            .answers("status.nvmlInit_v2=999\nstatus.cuInit=999")
    }),
    symptom("NVML 18", "HR-104", answering!("status.nvmlInit_v2=18")),
    symptom("CUDA 803", "HR-104", answering!("status.cuInit=803")),
    symptom("no /dev/nvidiactl", "HR-105", || {
        Machine::healthy()
            .without("/dev/nvidiactl")
            .answers("status.cuInit=100")
    }),
    symptom("no /dev/nvidia0", "HR-105", || {
        Machine::healthy()
            .without("/dev/nvidia0")
            .answers("status.cuInit=100")
    }),
    symptom("no /dev/nvidia-uvm", "HR-106", || {
        Machine::healthy()
            .without("/dev/nvidia-uvm")
            .answers("status.cuInit=100")
    }),
    symptom("/dev/nvidia0 cannot be opened", "HR-107", || {
        // Tests may run as root, who may open anything: but nobody opens a folder for writing.
        Machine::healthy()
            .without("/dev/nvidia0")
            .file("/dev/nvidia0/x", "")
            .answers("status.cuInit=100")
    }),
    symptom("a GPU set aside for virtual machines", "HR-118", || {
        Machine::plain().with_gpu().link(
            "/sys/bus/pci/devices/0000:18:00.0/driver",
            "../../../bus/pci/drivers/vfio-pci",
        )
    }),
    symptom("WSL", "HR-108", wsl),
    symptom("a Linux driver inside WSL", "HR-109", || {
        wsl()
            .with_driver_libraries(DRIVER)
            .without("/usr/lib/wsl/lib/libcuda.so.1")
            .answers("status.cuInit=100")
    }),
    symptom(
        "Xid 48, ECC",
        "HR-110",
        logging!("NVRM: Xid (PCI:0000:18:00): 48, pid=1, DBE"),
    ),
    symptom(
        "Xid 64, remapping failed",
        "HR-110",
        logging!("NVRM: Xid (PCI:0000:18:00): 64, row remapper"),
    ),
    symptom(
        "Xid 79, off the bus",
        "HR-110",
        logging!("NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus."),
    ),
    symptom(
        "Xid 95, uncontained",
        "HR-110",
        logging!("NVRM: Xid (PCI:0000:18:00): 95, pid=1, Uncontained"),
    ),
    symptom(
        "Xid 119, GSP",
        "HR-110",
        logging!("NVRM: Xid (PCI:0000:18:00): 119, pid=1, Timeout"),
    ),
    symptom(
        "Xid 120, GSP",
        "HR-110",
        logging!("NVRM: Xid (PCI:0000:18:00): 120, pid=1, GSP task"),
    ),
    symptom(
        "Xid 154, a reset",
        "HR-110",
        logging!("NVRM: Xid (PCI:0000:18:00): 154, changed to 0x1 (GPU Reset Required)"),
    ),
    symptom(
        "Xid 13, an application's",
        "HR-111",
        logging!("NVRM: Xid (PCI:0000:18:00): 13, pid=1, Graphics Exception"),
    ),
    symptom(
        "Xid 31, an application's",
        "HR-111",
        logging!("NVRM: Xid (PCI:0000:18:00): 31, pid=1, MMU Fault"),
    ),
    symptom(
        "Xid 94, contained",
        "HR-111",
        logging!("NVRM: Xid (PCI:0000:18:00): 94, pid=1, Contained"),
    ),
    symptom(
        "Xid 63, to be ignored",
        "HR-112",
        logging!("NVRM: Xid (PCI:0000:18:00): 63, Row Remapper"),
    ),
    symptom(
        "an unknown Xid",
        "HR-112",
        logging!("NVRM: Xid (PCI:0000:18:00): 4242, new"),
    ),
    symptom("an unreadable kernel log", "HR-113", || {
        Machine::healthy().without("/dev/kmsg")
    }),
    // NVML and the GPUs
    symptom("NVML's library missing", "HR-201", || {
        Machine::healthy().without(&format!("{LIBRARIES}/libnvidia-ml.so.1"))
    }),
    symptom(
        "NVML 12, library not found",
        "HR-201",
        answering!("status.nvmlInit_v2=12"),
    ),
    symptom(
        "NVML 4, no permission",
        "HR-202",
        answering!("status.nvmlInit_v2=4"),
    ),
    symptom(
        "an unknown NVML code",
        "HR-202",
        answering!("status.nvmlInit_v2=4242"),
    ),
    symptom(
        "NVML 15, GPU lost",
        "HR-203",
        answering!("status.nvmlDeviceGetHandleByIndex_v2=15"),
    ),
    symptom(
        "NVML 16, reset required",
        "HR-203",
        answering!("status.nvmlDeviceGetMemoryInfo_v2=16\nstatus.nvmlDeviceGetMemoryInfo=16"),
    ),
    symptom("NVML 999 in a container", "HR-117", || {
        container_with_gpu().answers("status.nvmlInit_v2=999\nstatus.cuInit=999")
    }),
    symptom("MIG", "HR-204", answering!("mig=1")),
    symptom(
        "persistence mode off",
        "HR-205",
        answering!("persistence=0"),
    ),
    symptom(
        "compute mode exclusive",
        "HR-206",
        answering!("compute_mode=3"),
    ),
    symptom(
        "compute mode prohibited",
        "HR-207",
        answering!("compute_mode=2"),
    ),
    symptom(
        "uncorrected ECC errors",
        "HR-208",
        answering!("ecc.volatile=2\necc.lifetime=2"),
    ),
    symptom(
        "ECC errors long ago",
        "HR-209",
        answering!("ecc.lifetime=2"),
    ),
    symptom(
        "row remapping pending",
        "HR-210",
        answering!("remap.pending=1"),
    ),
    symptom(
        "page retirement pending",
        "HR-210",
        answering!("retirement.pending=1"),
    ),
    symptom(
        "row remapping failed",
        "HR-211",
        answering!("remap.failed=1"),
    ),
    symptom("ECC off", "HR-212", answering!("ecc=0\necc.pending=0")),
    symptom("ECC to change", "HR-212", answering!("ecc.pending=0")),
    symptom("a hot GPU", "HR-213", answering!("temperature=90")),
    symptom(
        "clocks: hardware slowdown",
        "HR-214",
        answering!("clocks=8"),
    ),
    symptom(
        "clocks: hardware temperature",
        "HR-214",
        answering!("clocks=64"),
    ),
    symptom("clocks: power brake", "HR-214", answering!("clocks=128")),
    symptom(
        "clocks: software temperature",
        "HR-215",
        answering!("clocks=32"),
    ),
    symptom("clocks: power limit", "HR-216", answering!("clocks=4")),
    symptom(
        "clocks: a reason nobody knows",
        "HR-216",
        answering!("clocks=8192"),
    ),
    symptom("a narrow link", "HR-217", answering!("pcie.width=8")),
    symptom(
        "a slow link under load",
        "HR-217",
        answering!("pcie.generation=3\nbusy=99"),
    ),
    symptom(
        "a neighbour fills the card",
        "HR-218",
        answering!("memory.used=140000000000\nprocesses=4711:139000000000"),
    ),
    symptom(
        "memory of 0 bytes",
        "HR-219",
        answering!("memory.total=0\nmemory.used=0"),
    ),
    symptom(
        "memory not supported",
        "HR-219",
        answering!("status.nvmlDeviceGetMemoryInfo_v2=3\nstatus.nvmlDeviceGetMemoryInfo=3"),
    ),
    symptom(
        "an unsupported field",
        "HR-220",
        answering!("status.nvmlDeviceGetPowerUsage=3"),
    ),
    symptom("a driver with wrong processes", "HR-221", || {
        Machine::healthy()
            .with_module("535.54.03")
            .with_driver_libraries("535.54.03")
            .answers("driver=535.54.03\ncuda=12020")
    }),
    symptom(
        "a corrupt infoROM",
        "HR-222",
        answering!("status.nvmlDeviceValidateInforom=14"),
    ),
    symptom(
        "no power",
        "HR-223",
        answering!("status.nvmlDeviceGetHandleByIndex_v2=8"),
    ),
    symptom(
        "a display on the GPU",
        "HR-224",
        answering!("graphics=900:5000000"),
    ),
    symptom(
        "repeated transfers",
        "HR-225",
        answering!("pcie.replays=12"),
    ),
    symptom("many retired pages", "HR-226", answering!("retired=30")),
    // CUDA
    symptom("libcuda missing", "HR-301", || {
        Machine::healthy().without(&format!("{LIBRARIES}/libcuda.so.1"))
    }),
    symptom("CUDA 34, a stub", "HR-302", answering!("status.cuInit=34")),
    symptom(
        "CUDA 100, no device",
        "HR-303",
        answering!("status.cuInit=100"),
    ),
    symptom(
        "CUDA 101, invalid device",
        "HR-303",
        answering!("status.cuInit=101"),
    ),
    symptom("no device counted", "HR-303", answering!("devices=0")),
    symptom(
        "CUDA 804, cuda-compat",
        "HR-304",
        answering!("status.cuInit=804"),
    ),
    symptom(
        "CUDA 802, fabric manager",
        "HR-305",
        answering!("status.cuInit=802"),
    ),
    symptom("CUDA 805, MPS", "HR-306", answering!("status.cuInit=805")),
    symptom("CUDA 806, MPS", "HR-306", answering!("status.cuInit=806")),
    symptom("CUDA 807, MPS", "HR-306", answering!("status.cuInit=807")),
    symptom("CUDA 808, MPS", "HR-306", answering!("status.cuInit=808")),
    symptom("CUDA 809, MPS", "HR-306", answering!("status.cuInit=809")),
    symptom(
        "CUDA 2, out of memory",
        "HR-307",
        answering!("status.cuInit=2"),
    ),
    symptom("CUDA 214, ECC", "HR-307", answering!("status.cuInit=214")),
    symptom(
        "CUDA 700, a kernel's invalid address",
        "HR-307",
        answering!("status.cuInit=700"),
    ),
    symptom(
        "CUDA 719, a kernel failed",
        "HR-307",
        answering!("status.cuInit=719"),
    ),
    symptom(
        "an unknown CUDA code",
        "HR-307",
        answering!("status.cuInit=4242"),
    ),
    symptom("CUDA 222, PTX newer than the driver", "HR-308", || {
        Machine::healthy().kernels("mine", ".version 9.2\n.target sm_90\n")
    }),
    symptom("CUDA 218, PTX for a later GPU", "HR-309", || {
        Machine::healthy().kernels("mine", ".version 8.7\n.target sm_100\n")
    }),
    symptom("CUDA 209, PTX for another kind", "HR-309", || {
        Machine::healthy()
            .answers("major=10")
            .kernels("mine", ".version 8.7\n.target sm_90a\n")
    }),
    symptom("PTX of an unknown version", "HR-310", || {
        Machine::healthy().kernels("mine", ".version 99.0\n.target sm_90\n")
    }),
    symptom("libraries newer than the driver", "HR-313", || {
        Machine::healthy()
            .with_module("570.124.06")
            .with_driver_libraries("570.124.06")
            .answers("driver=570.124.06\ncuda=12080")
    }),
    symptom(
        "a driver before CUDA 12.2",
        "HR-314",
        answering!("cuda=12010"),
    ),
    symptom(
        "a GPU without bf16",
        "HR-315",
        answering!("major=7\nminor=5"),
    ),
    // Libraries
    symptom("exit 127: no libcudart", "HR-401", || {
        Machine::healthy().without(&format!("{LIBRARIES}/libcudart.so.13"))
    }),
    symptom("exit 127: libcublas in the toolkit alone", "HR-401", || {
        Machine::healthy()
            .without(&format!("{LIBRARIES}/libcublas.so.13"))
            .library_in("/usr/local/cuda-13.0/lib64", "libcublas.so.13", "13.1.0.3")
    }),
    symptom("a library in two versions", "HR-403", || {
        Machine::healthy()
            .library_in("/opt/cuda/lib64", "libcublas.so.13", "13.0.0.19")
            .variable("LD_LIBRARY_PATH", "/opt/cuda/lib64")
    }),
    symptom("libraries of two CUDAs", "HR-404", || {
        Machine::healthy()
            .without(&format!("{LIBRARIES}/libnvrtc.so.13"))
            .library("libnvrtc.so.12", "12.8.93")
    }),
    symptom(
        "stubs on the path",
        "HR-405",
        with_variable!("LD_LIBRARY_PATH", "/usr/local/cuda/lib64/stubs"),
    ),
    symptom("CUDA 221, no JIT compiler", "HR-406", || {
        Machine::healthy().without(&format!("{LIBRARIES}/libnvidia-ptxjitcompiler.so.1"))
    }),
    symptom("no cuDNN", "HR-407", || {
        Machine::healthy().without(&format!("{LIBRARIES}/libcudnn.so.9"))
    }),
    symptom("cuda-compat on the path", "HR-408", || {
        Machine::healthy()
            .library_in("/usr/local/cuda/compat", "libcuda.so.1", "590.44.01")
            .file(
                "/etc/ld.so.conf.d/000_cuda.conf",
                "/usr/local/cuda/compat\n",
            )
    }),
    symptom("cuDNN newer than the driver", "HR-409", || {
        Machine::plain()
            .with_gpu()
            .with_nodes()
            .with_module("515.43.04")
            .with_driver_libraries("515.43.04")
            .answers("driver=515.43.04\ncuda=11070")
            .library("libcudart.so.12", "12.4.127")
            .library("libcudnn.so.9", "9.1.0")
    }),
    symptom(
        "a folder of the path that does not exist",
        "HR-410",
        with_variable!("LD_LIBRARY_PATH", "/nowhere"),
    ),
    // The toolkit
    symptom("no toolkit", "HR-501", || {
        Machine::healthy().without("/usr/local/cuda")
    }),
    symptom("two toolkits", "HR-502", || {
        Machine::healthy()
            .file("/opt/cuda/bin/nvcc", "")
            .variable("CUDA_HOME", "/opt/cuda")
    }),
    symptom(
        "a toolkit that is not there",
        "HR-503",
        with_variable!("CUDA_HOME", "/opt/cuda"),
    ),
    symptom(
        "a toolkit newer than the driver",
        "HR-504",
        answering!("cuda=12080"),
    ),
    symptom(
        "CUDA_COMPUTE_CAP for a later GPU",
        "HR-505",
        with_variable!("CUDA_COMPUTE_CAP", "100"),
    ),
    symptom(
        "CUDA_COMPUTE_CAP is no number",
        "HR-505",
        with_variable!("CUDA_COMPUTE_CAP", "hopper"),
    ),
    symptom("no C++ compiler", "HR-506", || {
        Machine::healthy().without("/usr/bin/c++")
    }),
    // Variables
    symptom("all GPUs hidden", "HR-601", || hiding("")),
    symptom("all GPUs hidden by a number", "HR-601", || hiding("7")),
    symptom("GPUs hidden behind a wrong entry", "HR-602", || {
        Machine::healthy()
            .answers("gpus=3")
            .variable("CUDA_VISIBLE_DEVICES", "0,9,1")
    }),
    symptom("a GPU named twice", "HR-603", || hiding("0,0")),
    symptom(
        "launches are waited for",
        "HR-604",
        with_variable!("CUDA_LAUNCH_BLOCKING", "1"),
    ),
    symptom(
        "a debugging variable",
        "HR-605",
        with_variable!("CUDA_COREDUMP_FILE", "core.dump"),
    ),
    symptom(
        "CUDA 223, JIT disabled",
        "HR-606",
        with_variable!("CUDA_DISABLE_PTX_JIT", "1"),
    ),
    symptom(
        "the kernel cache disabled",
        "HR-607",
        with_variable!("CUDA_CACHE_DISABLE", "1"),
    ),
    symptom("a container that hides GPUs", "HR-608", || {
        container_with_gpu()
            .without("/dev/nvidia0")
            .variable("NVIDIA_VISIBLE_DEVICES", "void")
            .answers("status.cuInit=100")
    }),
    symptom("a container without compute", "HR-609", || {
        container_with_gpu()
            .without(&format!("{LIBRARIES}/libcuda.so.1"))
            .variable("NVIDIA_DRIVER_CAPABILITIES", "graphics,utility")
    }),
    symptom(
        "GPUs in two orders",
        "HR-610",
        answering!("gpus=2\n1.name=NVIDIA T400"),
    ),
    symptom(
        "limits of MPS",
        "HR-611",
        with_variable!("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25"),
    ),
    // The host
    symptom(
        "a container without NVIDIA's runtime",
        "HR-115",
        Machine::container,
    ),
    symptom("a cgroup's limit", "HR-701", || {
        Machine::plain()
            .file("/proc/self/cgroup", "0::/\n")
            .file("/sys/fs/cgroup/memory.max", "2147483648\n")
            .file("/sys/fs/cgroup/memory.current", "1048576\n")
    }),
    symptom("little memory", "HR-702", || {
        Machine::plain().file(
            "/proc/meminfo",
            "MemTotal: 16777216 kB\nMemAvailable: 262144 kB\n",
        )
    }),
    symptom("a full swap", "HR-703", || {
        Machine::plain().file("/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 2097152 kB\nSwapTotal: 1048576 kB\nSwapFree: 1024 kB\n")
    }),
    symptom("a small /dev/shm", "HR-704", || {
        Machine::healthy().file(
            "/proc/mounts",
            "shm /dev/shm tmpfs rw,nosuid,size=65536k 0 0\n",
        )
    }),
    symptom("unknown memory", "HR-705", || {
        Machine::plain().file("/proc/meminfo", "garbage")
    }),
    symptom("a container", "HR-116", container_with_gpu),
];
