//! Variables and the host.

use super::{Symptom, container_with_gpu, hiding, symptom};
use crate::machine::{LIBRARIES, Machine};

pub const SYMPTOMS: &[Symptom] = &[
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
    symptom("a kernel cache that cannot be written", "HR-612", || {
        // A file stands where its folder would be made.
        let machine = Machine::healthy().variable("HOME", "/home/user");
        machine.file("/home/user/.nv", "")
    }),
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
