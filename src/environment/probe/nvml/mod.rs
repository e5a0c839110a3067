//! What NVML tells of the GPUs. A value that it does not give stays a number: its return code.

mod gpu;

use std::path::PathBuf;

pub(in crate::environment) use gpu::GpuReading;

use super::libraries::locate;
use crate::environment::source::Source;
use crate::nvml::{Field, Library, NAMES};

/// More GPUs than any machine has, whatever a broken library says.
const MOST_GPUS: u32 = 1024;

/// All that NVML tells of a machine.
#[derive(Debug, Clone)]
pub(in crate::environment) struct Readings {
    pub(in crate::environment) init: Field<()>,
    /// The version of the kernel module.
    pub(in crate::environment) driver: Field<String>,
    /// The newest CUDA that the driver supports, as 12040.
    pub(in crate::environment) cuda: Field<i32>,
    pub(in crate::environment) gpus: Field<Vec<GpuReading>>,
}

/// Loads NVML and asks everything; the error says why it cannot be loaded.
pub(in crate::environment) fn look(source: &Source) -> Result<Readings, String> {
    let paths: Vec<PathBuf> = match source.is_this_machine() {
        true => NAMES.map(Into::into).to_vec(),
        false => locate(source, NAMES[0]).into_iter().collect(),
    };
    let nvml = Library::load(&paths)?.begin();
    let nvml = nvml.as_ref().map_err(|code| *code);
    let gpus = nvml.and_then(|nvml| {
        let count = nvml.count()?.min(MOST_GPUS);
        let reading = |index| match nvml.device(index) {
            Ok(device) => GpuReading::of(index, &device),
            Err(code) => GpuReading::unreachable(index, code),
        };
        Ok((0..count).map(reading).collect())
    });
    Ok(Readings {
        init: nvml.map(|_| ()),
        driver: nvml.and_then(|nvml| nvml.driver()),
        cuda: nvml.and_then(|nvml| nvml.cuda()),
        gpus,
    })
}
