//! What NVML tells of the GPUs. A value that it does not give stays a number: its return code.

mod device;
mod library;
mod processes;

use std::ffi::c_char;

use library::Nvml;

use crate::environment::source::Source;
use crate::facts;

/// A value, or the return code that came instead of it.
pub(in crate::environment) type Field<T> = Result<T, u32>;

/// NVML's return code for a function that it does not have.
const FUNCTION_NOT_FOUND: u32 = 13;
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

/// What NVML tells of one GPU, in NVML's order.
#[derive(Debug, Clone)]
pub(in crate::environment) struct GpuReading {
    pub(in crate::environment) index: u32,
    /// Why there is no handle, and so nothing else.
    pub(in crate::environment) handle: Field<()>,
    pub(in crate::environment) name: Field<String>,
    pub(in crate::environment) uuid: Field<String>,
    pub(in crate::environment) serial: Field<String>,
    pub(in crate::environment) pci: Field<String>,
    pub(in crate::environment) capability: Field<(u32, u32)>,
    pub(in crate::environment) memory: Field<MemoryReadout>,
    /// Processes that compute, with their bytes where those are told.
    pub(in crate::environment) processes: Field<Vec<(u32, Option<u64>)>>,
    /// How many processes draw.
    pub(in crate::environment) graphics: Field<usize>,
    /// Now, and after the next reset.
    pub(in crate::environment) ecc: Field<(bool, bool)>,
    /// Errors that could not be corrected: since the driver was loaded, and in the GPU's life.
    pub(in crate::environment) uncorrected: Field<(u64, u64)>,
    /// Retired pages, by double bit errors and by many single ones.
    pub(in crate::environment) retired: Field<(u32, u32)>,
    pub(in crate::environment) retirement_pending: Field<bool>,
    pub(in crate::environment) remapped: Field<Remapped>,
    pub(in crate::environment) inforom: Field<()>,
    /// In °C: now, and where the clocks are slowed down.
    pub(in crate::environment) temperature: Field<u32>,
    pub(in crate::environment) slowdown: Field<u32>,
    /// In milliwatts: now, and the limit.
    pub(in crate::environment) power: Field<u32>,
    pub(in crate::environment) power_limit: Field<u32>,
    pub(in crate::environment) clock_reasons: Field<u64>,
    /// In percent.
    pub(in crate::environment) utilization: Field<u32>,
    /// Lanes: now, and at most.
    pub(in crate::environment) pcie_width: Field<(u32, u32)>,
    pub(in crate::environment) pcie_generation: Field<(u32, u32)>,
    /// Transfers over the link to the host that had to be repeated.
    pub(in crate::environment) pcie_replays: Field<u32>,
    pub(in crate::environment) persistence: Field<bool>,
    pub(in crate::environment) mig: Field<bool>,
    pub(in crate::environment) compute_mode: Field<u32>,
}

/// Bytes of a GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::environment) struct MemoryReadout {
    pub(in crate::environment) total: u64,
    pub(in crate::environment) used: u64,
    pub(in crate::environment) free: u64,
}

/// Rows of memory that spare ones stand in for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::environment) struct Remapped {
    pub(in crate::environment) uncorrectable: u32,
    pub(in crate::environment) pending: bool,
    pub(in crate::environment) failed: bool,
}

/// Loads NVML and asks everything; the error says why it cannot be loaded.
pub(in crate::environment) fn look(source: &Source) -> Result<Readings, String> {
    let mut nvml = Nvml::load(source)?;
    let init = nvml.init();
    let driver = init.and_then(|()| nvml.driver_version());
    let version = driver.as_ref().ok().and_then(|driver| driver.parse().ok());
    nvml.avoids_newest = version.is_some_and(facts::reports_processes_wrongly);
    let readings = Readings {
        driver,
        cuda: init.and_then(|()| nvml.cuda_version()),
        gpus: init.and_then(|()| {
            let count = nvml.count()?.min(MOST_GPUS);
            Ok((0..count).map(|index| nvml.gpu(index)).collect())
        }),
        init,
    };
    if init.is_ok() {
        nvml.shutdown();
    }
    Ok(readings)
}

impl GpuReading {
    /// A GPU of which nothing is known but the reason for that.
    fn unreachable(index: u32, code: u32) -> Self {
        Self {
            index,
            handle: Err(code),
            name: Err(code),
            uuid: Err(code),
            serial: Err(code),
            pci: Err(code),
            capability: Err(code),
            memory: Err(code),
            processes: Err(code),
            graphics: Err(code),
            ecc: Err(code),
            uncorrected: Err(code),
            retired: Err(code),
            retirement_pending: Err(code),
            remapped: Err(code),
            inforom: Err(code),
            temperature: Err(code),
            slowdown: Err(code),
            power: Err(code),
            power_limit: Err(code),
            clock_reasons: Err(code),
            utilization: Err(code),
            pcie_width: Err(code),
            pcie_generation: Err(code),
            pcie_replays: Err(code),
            persistence: Err(code),
            mig: Err(code),
            compute_mode: Err(code),
        }
    }

    /// What was not told: the value's name and the return code.
    pub(in crate::environment) fn untold(&self) -> Vec<(&'static str, u32)> {
        let all = [
            ("name", self.name.as_ref().err()),
            ("UUID", self.uuid.as_ref().err()),
            ("serial number", self.serial.as_ref().err()),
            ("PCI address", self.pci.as_ref().err()),
            ("compute capability", self.capability.as_ref().err()),
            ("memory", self.memory.as_ref().err()),
            ("processes", self.processes.as_ref().err()),
            ("graphics processes", self.graphics.as_ref().err()),
            ("ECC mode", self.ecc.as_ref().err()),
            ("ECC errors", self.uncorrected.as_ref().err()),
            ("retired pages", self.retired.as_ref().err()),
            (
                "pending page retirement",
                self.retirement_pending.as_ref().err(),
            ),
            ("remapped rows", self.remapped.as_ref().err()),
            ("infoROM", self.inforom.as_ref().err()),
            ("temperature", self.temperature.as_ref().err()),
            ("slowdown temperature", self.slowdown.as_ref().err()),
            ("power", self.power.as_ref().err()),
            ("power limit", self.power_limit.as_ref().err()),
            ("clock event reasons", self.clock_reasons.as_ref().err()),
            ("utilisation", self.utilization.as_ref().err()),
            ("PCIe width", self.pcie_width.as_ref().err()),
            ("PCIe generation", self.pcie_generation.as_ref().err()),
            ("PCIe replays", self.pcie_replays.as_ref().err()),
            ("persistence mode", self.persistence.as_ref().err()),
            ("MIG mode", self.mig.as_ref().err()),
            ("compute mode", self.compute_mode.as_ref().err()),
        ];
        let untold = all.into_iter();
        untold
            .filter_map(|(name, code)| Some((name, *code?)))
            .collect()
    }
}

/// A text that a C library wrote, up to its end or the end of the room.
pub(in crate::environment) fn text(room: &[c_char]) -> String {
    let bytes: Vec<u8> = room
        .iter()
        .take_while(|&&byte| byte != 0)
        .map(|&byte| byte as u8)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
