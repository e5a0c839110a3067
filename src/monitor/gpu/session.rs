//! One GPU while NVML answers for it.

use std::sync::Arc;

use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, PcieUtilCounter, TemperatureSensor};
use nvml_wrapper::error::NvmlError;

use crate::monitor::{Health, HeldDown, Sample};
use crate::nvml::{self, Device, Field, Nvml, Processes, knows_processes};

#[derive(Debug)]
pub(super) struct Session {
    device: Device,
    /// Bits of the readings that this GPU or driver does not support; they are not asked for again.
    unsupported: u32,
    processes: Processes,
    /// This process's number, or `None` in a container, where the driver's list has other numbers.
    own_process: Option<u32>,
    /// The latest slow readings; its other values are unknown.
    slow: Option<Sample>,
}

/// Fills in one or more values.
type Reading = fn(&mut Session, &mut Sample) -> Field<()>;

/// The number of readings that are made for each sample. The others change slowly or take long: the driver counts PCIe traffic for
/// 20 ms in each direction.
const QUICK: usize = 8;

const READINGS: [Reading; 12] = [
    Session::read_memory,
    Session::read_processes,
    |gpu, sample| {
        let rates = gpu.device.ask(|gpu| gpu.utilization_rates())?;
        sample.utilisation = Some(rates.gpu.into());
        sample.memory_utilisation = Some(rates.memory.into());
        Ok(())
    },
    |gpu, sample| {
        let sensor = TemperatureSensor::Gpu;
        gpu.read(&mut sample.temperature, |gpu| gpu.temperature(sensor))
    },
    |gpu, sample| gpu.read(&mut sample.power, |gpu| gpu.power_usage()),
    |gpu, sample| gpu.read(&mut sample.clock, |gpu| gpu.clock_info(Clock::SM)),
    |gpu, sample| {
        gpu.read(&mut sample.memory_clock, |gpu| {
            gpu.clock_info(Clock::Memory)
        })
    },
    |gpu, sample| {
        sample.held_down = Some(HeldDown::from_bits(gpu.device.clock_reasons()?));
        Ok(())
    },
    |gpu, sample| gpu.read_traffic(&mut sample.pcie_received, PcieUtilCounter::Receive),
    |gpu, sample| gpu.read_traffic(&mut sample.pcie_sent, PcieUtilCounter::Send),
    |gpu, sample| gpu.read(&mut sample.power_limit, |gpu| gpu.enforced_power_limit()),
    |gpu, sample| {
        sample.ecc_errors = Some(gpu.device.uncorrected(EccCounter::Volatile)?);
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
            slow: None,
        })
    }

    /// Reads all values; the slow ones only if `looks_closely`.
    pub(super) fn look(&mut self, sample: &mut Sample, looks_closely: bool) -> Health {
        let mut slow = Sample::blank(sample.source, sample.taken, sample.at);
        let (mut answers, mut fails) = (false, false);
        for (index, reading) in READINGS.iter().enumerate() {
            let is_slow = index >= QUICK;
            if (is_slow && !looks_closely) || self.unsupported & (1 << index) != 0 {
                continue;
            }
            match reading(self, if is_slow { &mut slow } else { sample }) {
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
        if looks_closely {
            self.slow = Some(slow);
        }
        if let Some(slow) = &self.slow {
            sample.pcie_received = slow.pcie_received;
            sample.pcie_sent = slow.pcie_sent;
            sample.power_limit = slow.power_limit;
            sample.ecc_errors = slow.ecc_errors;
        }
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
