//! All symptoms that the checker recognizes: a machine that shows it, and the code of the finding.

use std::sync::LazyLock;

use crate::machine::Machine;

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

mod cuda;
mod gpus;
mod kernel;
mod libraries;
mod ranks;
mod surroundings;

pub static SYMPTOMS: LazyLock<Vec<&Symptom>> = LazyLock::new(|| {
    let groups = [
        kernel::SYMPTOMS,
        gpus::SYMPTOMS,
        cuda::SYMPTOMS,
        libraries::SYMPTOMS,
        surroundings::SYMPTOMS,
        ranks::SYMPTOMS,
    ];
    groups.into_iter().flatten().collect()
});

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
