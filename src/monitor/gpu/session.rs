//! One GPU while NVML answers for it.

use std::sync::Arc;

use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, PcieUtilCounter, TemperatureSensor as Sensor,
};
use nvml_wrapper::error::NvmlError;

use crate::environment::nvml::{self, Device, Field, Nvml, Processes, knows_processes};
use crate::monitor::{Health, HeldDown, Sample};

pub(super) struct Session {
    device: Device,
    /// Bits of the readings that this GPU or driver does not support; they are not asked for again.
    unsupported: u32,
    processes: Processes,
    /// This process's number, or `None` in a container, where the driver's list has other numbers.
    own_process: Option<u32>,
    /// The last sample, whose slow values are repeated until they are read again.
    last: Option<Sample>,
}

/// Fills in one or more values.
type Reading = fn(&mut Session, &mut Sample) -> Field<()>;

/// The number of readings that are made for each sample. The others change slowly or take long: the driver counts PCIe traffic for
/// 20 ms in each direction.
const QUICK: usize = 8;

const READINGS: [Reading; 12] = [
    Session::read_memory,
    Session::read_processes,
    |gpu, to| {
        let rates = gpu.device.ask(|gpu| gpu.utilization_rates())?;
        to.utilisation = Some(rates.gpu.into());
        to.memory_utilisation = Some(rates.memory.into());
        Ok(())
    },
    |gpu, to| gpu.read(&mut to.temperature, |gpu| gpu.temperature(Sensor::Gpu)),
    |gpu, to| gpu.read(&mut to.power, |gpu| gpu.power_usage()),
    |gpu, to| gpu.read(&mut to.clock, |gpu| gpu.clock_info(Clock::SM)),
    |gpu, to| gpu.read(&mut to.memory_clock, |gpu| gpu.clock_info(Clock::Memory)),
    |gpu, to| {
        to.held_down = Some(HeldDown::from_bits(gpu.device.clock_reasons()?));
        Ok(())
    },
    |gpu, to| gpu.read_traffic(&mut to.pcie_received, PcieUtilCounter::Receive),
    |gpu, to| gpu.read_traffic(&mut to.pcie_sent, PcieUtilCounter::Send),
    |gpu, to| gpu.read(&mut to.power_limit, |gpu| gpu.enforced_power_limit()),
    |gpu, to| {
        to.ecc_errors = Some(gpu.device.uncorrected(EccCounter::Volatile)?);
        Ok(())
    },
];

impl Session {
    pub(super) fn begin(nvml: &Arc<Nvml>, uuid: &str) -> Option<Self> {
        Some(Self {
            device: nvml.device_by_uuid(uuid).ok()?,
            unsupported: 0,
            processes: Processes::default(),
            own_process: knows_processes().then(std::process::id),
            last: None,
        })
    }

    /// Reads all values; the slow ones only if `looks_closely`.
    pub(super) fn look(&mut self, sample: &mut Sample, looks_closely: bool) -> Health {
        let count = if looks_closely { READINGS.len() } else { QUICK };
        if let Some(last) = self.last.filter(|_| !looks_closely) {
            sample.pcie_received = last.pcie_received;
            sample.pcie_sent = last.pcie_sent;
            sample.power_limit = last.power_limit;
            sample.ecc_errors = last.ecc_errors;
        }
        let (mut answers, mut fails) = (false, false);
        for (index, reading) in READINGS.iter().enumerate().take(count) {
            if self.unsupported & (1 << index) != 0 {
                continue;
            }
            match reading(self, sample) {
                Ok(()) => answers = true,
                Err(nvml::GPU_IS_LOST | nvml::UNINITIALIZED | nvml::DRIVER_NOT_LOADED) => {
                    return Health::Lost;
                }
                Err(nvml::RESET_REQUIRED) => return Health::NeedsReset,
                Err(nvml::NOT_SUPPORTED | nvml::NO_PERMISSION | nvml::FUNCTION_NOT_FOUND) => {
                    self.unsupported |= 1 << index;
                }
                // The next call may succeed.
                Err(_) => fails = true,
            }
        }
        if fails && !answers {
            return Health::Lost;
        }
        self.last = Some(*sample);
        Health::Good
    }

    fn read(
        &self,
        value: &mut Option<u64>,
        question: impl FnOnce(&nvml_wrapper::Device<'_>) -> Result<u32, NvmlError>,
    ) -> Field<()> {
        *value = Some(self.device.ask(question)?.into());
        Ok(())
    }

    fn read_traffic(&self, value: &mut Option<u64>, direction: PcieUtilCounter) -> Field<()> {
        let kilobytes = self.device.ask(|gpu| gpu.pcie_throughput(direction))?;
        *value = Some(u64::from(kilobytes) * 1000);
        Ok(())
    }

    fn read_memory(&mut self, sample: &mut Sample) -> Field<()> {
        let memory = self.device.memory()?;
        // GPUs without memory of their own report a total of 0.
        if memory.total > 0 {
            sample.total = Some(memory.total);
            sample.used = Some(memory.used);
            sample.free = Some(memory.free);
        }
        Ok(())
    }

    /// Reads into a list that is kept, so that a sample allocates nothing.
    fn read_processes(&mut self, sample: &mut Sample) -> Field<()> {
        let own = self.own_process.ok_or(nvml::NOT_SUPPORTED)?;
        self.device.list_processes(&mut self.processes)?;
        let mut others = Some(0u64);
        for (process, bytes) in self.processes.iter() {
            if process == own {
                sample.process = bytes;
                continue;
            }
            let both = others.zip(bytes);
            others = both.map(|(sum, more)| sum.saturating_add(more));
        }
        sample.others = others;
        Ok(())
    }
}
