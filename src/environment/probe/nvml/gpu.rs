//! What NVML tells of one GPU.

use crate::nvml::{Device, Field, Memory, Processes, Remapped};

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
    pub(in crate::environment) memory: Field<Memory>,
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

impl GpuReading {
    pub(super) fn of(index: u32, device: &Device) -> Self {
        let is_on = |value: u32| value != 0;
        Self {
            index,
            handle: Ok(()),
            name: device.name(),
            uuid: device.uuid(),
            serial: device.serial(),
            pci: device.pci(),
            capability: (device.capability())
                .map(|(major, minor)| (major.max(0) as u32, minor.max(0) as u32)),
            memory: device.memory(),
            processes: processes(device),
            graphics: device.graphics(),
            ecc: device.ecc().map(|(now, next)| (is_on(now), is_on(next))),
            uncorrected: both(device.uncorrected(), device.uncorrected_ever()),
            retired: device.retired(),
            retirement_pending: device.retirement_pending().map(is_on),
            remapped: device.remapped(),
            inforom: device.inforom(),
            temperature: device.temperature(),
            slowdown: device.slowdown(),
            power: device.power(),
            power_limit: device.power_limit(),
            clock_reasons: device.clock_reasons(),
            utilization: device.utilisation().map(|(kernels, _)| kernels),
            pcie_width: both(device.pcie_width(), device.most_pcie_width()),
            pcie_generation: both(device.pcie_generation(), device.most_pcie_generation()),
            pcie_replays: device.pcie_replays(),
            persistence: device.persistence().map(is_on),
            mig: device.mig().map(|(now, _)| is_on(now)),
            compute_mode: device.compute_mode(),
        }
    }

    /// A GPU of which nothing is known but the reason for that.
    pub(super) fn unreachable(index: u32, code: u32) -> Self {
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

fn both<T>(one: Field<T>, two: Field<T>) -> Field<(T, T)> {
    Ok((one?, two?))
}

fn processes(device: &Device) -> Field<Vec<(u32, Option<u64>)>> {
    let mut processes = Processes::default();
    device.list_processes(&mut processes)?;
    Ok(processes.iter().collect())
}
