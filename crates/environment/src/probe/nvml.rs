//! What NVML says of a machine and of each GPU.
//!
//! Each value is read by itself and is a result: a GPU that refuses one, as many do, still gives the others. `judge/gpus.rs` tells refusals that
//! are usual from those that mean trouble.

use std::time::Duration;

use nvml_wrapper::enum_wrappers::device::{
    ComputeMode, EccCounter, TemperatureSensor, TemperatureThreshold,
};

use super::libraries::locate;
use crate::facts::Version;
use crate::nvml::{Device, Field, Memory, NAMES, Nvml, Processes, Remapped};
use crate::patience::load_first;
use crate::{Answer, Reply, Source};

/// More GPUs than any machine has, whatever a broken library says.
const MOST_GPUS: u32 = 1024;

/// What NVML says of a machine.
#[derive(Debug, Clone)]
pub(crate) struct Readings {
    /// The newest CUDA that the driver supports.
    pub(crate) cuda: Option<Version>,
    pub(crate) gpus: Vec<GpuReading>,
    /// Each pair of GPUs that NVML tells of.
    pub(crate) pairs: Vec<Pair>,
}

/// Two GPUs, by NVML's indexes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) gpus: [u32; 2],
    /// Why they cannot access each other's memory; 0 if they can.
    pub(crate) status: u32,
    /// Whether NVLink connects them.
    pub(crate) by_nvlink: bool,
}

/// Loads NVML and asks for the driver's version and for everything else.
pub(crate) fn look(source: &Source, limit: Duration) -> Answer<Readings> {
    let (library, _) = load_first(&locate(source, &NAMES), NAMES[0], limit)?;
    let nvml = match Nvml::begin(&library) {
        Ok(nvml) => nvml,
        Err(code) => return Ok((None, Reply::Failed("nvmlInit", code))),
    };
    let count = match nvml.ask(|nvml| nvml.device_count()) {
        Ok(count) => count.min(MOST_GPUS),
        Err(code) => return Ok((nvml.driver, Reply::Failed("nvmlDeviceGetCount", code))),
    };
    let cuda = nvml.ask(|nvml| nvml.sys_cuda_driver_version()).ok();
    let devices: Vec<_> = (0..count).map(|index| nvml.device(index)).collect();
    let pairs = pairs(&devices);
    let gpus = (0..).zip(devices);
    let gpus = gpus.map(|(index, device)| GpuReading::of(index, device));
    let readings = Readings {
        cuda: cuda.and_then(Version::of_cuda),
        gpus: gpus.collect(),
        pairs,
    };
    Ok((nvml.driver, Reply::Works(readings)))
}

/// The pairs of the first GPUs.
fn pairs(devices: &[Field<Device>]) -> Vec<Pair> {
    // As many as one machine's NVLink connects.
    const MOST: usize = 16;
    // Ways of `nvmlGpuP2PCapsIndex_t`.
    const READ: u32 = 0;
    const NVLINK: u32 = 2;
    let devices = (0..).zip(devices).take(MOST);
    let devices = devices.filter_map(|(index, device)| Some((index, device.as_ref().ok()?)));
    let devices: Vec<_> = devices.collect();
    let mut pairs = Vec::new();
    for (place, (one, device)) in devices.iter().enumerate() {
        for (other, peer) in &devices[place + 1..] {
            let status = device.peer_status(peer, READ);
            pairs.extend(status.map(|status| Pair {
                gpus: [*one, *other],
                status,
                by_nvlink: device.peer_status(peer, NVLINK) == Ok(0),
            }));
        }
    }
    pairs
}

/// Declares [`GpuReading`]: for each field its type, its name in reports, and how it is read.
macro_rules! readings {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $name:literal, $read:expr;)*) => {
        /// What NVML says of one GPU.
        #[derive(Debug, Clone)]
        pub(crate) struct GpuReading {
            pub(crate) index: u32,
            /// The return code if there is no handle, and so nothing else.
            pub(crate) handle: Field<()>,
            $($(#[$doc])* pub(crate) $field: Field<$type>,)*
        }

        impl GpuReading {
            fn of(index: u32, device: Field<Device>) -> Self {
                let device = device.as_ref().map_err(|code| *code);
                Self {
                    index,
                    handle: device.map(|_| ()),
                    $($field: device.and_then($read),)*
                }
            }

            /// The names and return codes of the values that NVML refused.
            pub(crate) fn refused(&self) -> Vec<(&'static str, u32)> {
                let all = [$(($name, self.$field.as_ref().err().copied())),*];
                let refused = all.into_iter();
                refused.filter_map(|(name, code)| Some((name, code?))).collect()
            }
        }
    };
}

readings! {
    name: String = "name", |gpu| gpu.ask(|gpu| gpu.name());
    uuid: String = "UUID", |gpu| gpu.ask(|gpu| gpu.uuid());
    serial: String = "serial number", |gpu| gpu.ask(|gpu| gpu.serial());
    pci: String = "PCI address", |gpu| gpu.ask(|gpu| gpu.pci_info().map(|info| info.bus_id));
    capability: (u32, u32) = "compute capability", |gpu| {
        let capability = gpu.ask(|gpu| gpu.cuda_compute_capability())?;
        Ok((capability.major.max(0) as u32, capability.minor.max(0) as u32))
    };
    memory: Memory = "memory", Device::memory;
    /// Processes that compute, with their bytes if known.
    processes: Vec<(u32, Option<u64>)> = "processes", |gpu| {
        let mut processes = Processes::default();
        gpu.list_processes(&mut processes)?;
        Ok(processes.iter().collect())
    };
    /// The number of processes that draw.
    graphics: usize = "graphics processes", Device::graphics;
    /// Now, and after the next reset.
    ecc: (bool, bool) = "ECC mode", |gpu| {
        gpu.ask(|gpu| gpu.is_ecc_enabled().map(|ecc| (ecc.currently_enabled, ecc.pending_enabled)))
    };
    /// Uncorrected errors since the driver was loaded, and in the GPU's life.
    uncorrected: (u64, u64) = "ECC errors", |gpu| {
        Ok((gpu.uncorrected(EccCounter::Volatile)?, gpu.uncorrected(EccCounter::Aggregate)?))
    };
    retired: u32 = "retired pages", Device::retired;
    retirement_pending: bool = "pending page retirement", |gpu| {
        gpu.ask(|gpu| gpu.are_pages_pending_retired())
    };
    remapped: Remapped = "remapped rows", Device::remapped;
    inforom: () = "infoROM", |gpu| gpu.ask(|gpu| gpu.validate_info_rom());
    /// In °C.
    temperature: u32 = "temperature", |gpu| gpu.ask(|gpu| gpu.temperature(TemperatureSensor::Gpu));
    /// The temperature, in °C, at which the clocks are lowered.
    slowdown: u32 = "slowdown temperature", |gpu| {
        gpu.ask(|gpu| gpu.temperature_threshold(TemperatureThreshold::Slowdown))
    };
    /// In milliwatts.
    power: u32 = "power", |gpu| gpu.ask(|gpu| gpu.power_usage());
    /// In milliwatts.
    power_limit: u32 = "power limit", |gpu| gpu.ask(|gpu| gpu.enforced_power_limit());
    clock_reasons: u64 = "clock event reasons", Device::clock_reasons;
    /// In percent.
    utilization: u32 = "utilisation", |gpu| gpu.ask(|gpu| gpu.utilization_rates().map(|rates| rates.gpu));
    /// Lanes: now, and at most.
    pcie_width: (u32, u32) = "PCIe width", |gpu| {
        gpu.ask(|gpu| Ok((gpu.current_pcie_link_width()?, gpu.max_pcie_link_width()?)))
    };
    pcie_generation: (u32, u32) = "PCIe generation", |gpu| {
        gpu.ask(|gpu| Ok((gpu.current_pcie_link_gen()?, gpu.max_pcie_link_gen()?)))
    };
    /// Repeated transfers over the link to the host.
    pcie_replays: u32 = "PCIe replays", |gpu| gpu.ask(|gpu| gpu.pcie_replay_counter());
    persistence: bool = "persistence mode", |gpu| gpu.ask(|gpu| gpu.is_in_persistent_mode());
    mig: bool = "MIG mode", |gpu| gpu.ask(|gpu| gpu.mig_mode().map(|mode| mode.current != 0));
    compute_mode: ComputeMode = "compute mode", |gpu| gpu.ask(|gpu| gpu.compute_mode());
}
