//! NVML and the GPUs.

use super::{Symptom, container_with_gpu, symptom};
use crate::machine::{LIBRARIES, Machine};

pub const SYMPTOMS: &[Symptom] = &[
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
];
