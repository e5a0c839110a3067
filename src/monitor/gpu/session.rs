//! One GPU while NVML answers for it.

use std::sync::Arc;

use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, PcieUtilCounter, TemperatureSensor};
use nvml_wrapper::error::NvmlError;

use crate::monitor::{Health, HeldDown, Sample};
use crate::nvml::{self, Device, Nvml, Processes, knows_processes};

#[derive(Debug)]
pub(super) struct Session {
    device: Device,
    /// Bits of fields that this GPU or driver does not support; they are not asked for again.
    unsupported: u32,
    /// Whether any call of this look succeeded, and whether any failed that is supported.
    answers: bool,
    fails: bool,
    processes: Processes,
    /// This process's number, or `None` in a container, where the driver's list has other numbers.
    own_process: Option<u32>,
    /// What `look_closely` read last, as in a [`Sample`]: PCIe traffic received and sent, the power limit and memory errors.
    slow: [Option<u64>; 4],
}

/// The bits of `unsupported`.
#[derive(Debug, Clone, Copy)]
enum Field {
    Memory,
    Processes,
    Utilisation,
    Temperature,
    Power,
    PowerLimit,
    Clock,
    MemoryClock,
    HeldDown,
    PcieReceived,
    PcieSent,
    EccErrors,
}

impl Session {
    pub(super) fn begin(nvml: &Arc<Nvml>, uuid: &str) -> Option<Self> {
        Some(Self {
            device: nvml.device_by_uuid(uuid).ok()?,
            unsupported: 0,
            answers: false,
            fails: false,
            processes: Processes::default(),
            own_process: knows_processes().then(std::process::id),
            slow: [None; 4],
        })
    }

    /// Reads all values. An error means that the device is gone.
    pub(super) fn look(&mut self, sample: &mut Sample, looks_closely: bool) -> Result<(), Health> {
        (self.answers, self.fails) = (false, false);
        // GPUs without memory of their own report a total of 0.
        let memory = self.ask(Field::Memory, Device::memory)?;
        if let Some(memory) = memory.filter(|memory| memory.total > 0) {
            sample.total = Some(memory.total);
            sample.used = Some(memory.used);
            sample.free = Some(memory.free);
        }
        self.look_at_processes(sample)?;
        let utilisation = self.ask(Field::Utilisation, |gpu| {
            gpu.ask(|gpu| gpu.utilization_rates())
        })?;
        sample.utilisation = utilisation.as_ref().map(|rates| rates.gpu.into());
        sample.memory_utilisation = utilisation.map(|rates| rates.memory.into());
        sample.temperature = self.number(Field::Temperature, |gpu| {
            gpu.temperature(TemperatureSensor::Gpu)
        })?;
        sample.power = self.number(Field::Power, |gpu| gpu.power_usage())?;
        sample.clock = self.number(Field::Clock, |gpu| gpu.clock_info(Clock::SM))?;
        sample.memory_clock =
            self.number(Field::MemoryClock, |gpu| gpu.clock_info(Clock::Memory))?;
        let bits = self.ask(Field::HeldDown, Device::clock_reasons)?;
        sample.held_down = bits.map(HeldDown::from_bits);
        if looks_closely {
            self.look_closely()?;
        }
        if self.fails && !self.answers {
            return Err(Health::Lost);
        }
        [
            sample.pcie_received,
            sample.pcie_sent,
            sample.power_limit,
            sample.ecc_errors,
        ] = self.slow;
        Ok(())
    }

    /// Reads the values that change slowly or take long: the driver counts traffic for 20 ms in each direction.
    fn look_closely(&mut self) -> Result<(), Health> {
        let bytes = |kilobytes: u64| kilobytes.saturating_mul(1000);
        let received = self.number(Field::PcieReceived, |gpu| {
            gpu.pcie_throughput(PcieUtilCounter::Receive)
        })?;
        let sent = self.number(Field::PcieSent, |gpu| {
            gpu.pcie_throughput(PcieUtilCounter::Send)
        })?;
        self.slow = [
            received.map(bytes),
            sent.map(bytes),
            self.number(Field::PowerLimit, |gpu| gpu.enforced_power_limit())?,
            self.ask(Field::EccErrors, |gpu| {
                gpu.uncorrected(EccCounter::Volatile)
            })?,
        ];
        Ok(())
    }

    /// Reads into a list that is kept, so that a sample allocates nothing.
    fn look_at_processes(&mut self, sample: &mut Sample) -> Result<(), Health> {
        let Some(own) = self.own_process else {
            return Ok(());
        };
        let mut processes = std::mem::take(&mut self.processes);
        let listed = self.ask(Field::Processes, |device| {
            device.list_processes(&mut processes)
        });
        self.processes = processes;
        if listed?.is_none() {
            return Ok(());
        }
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

    fn number(
        &mut self,
        field: Field,
        question: impl FnOnce(&nvml_wrapper::Device<'_>) -> Result<u32, NvmlError>,
    ) -> Result<Option<u64>, Health> {
        let number = self.ask(field, |device| device.ask(question))?;
        Ok(number.map(u64::from))
    }

    /// The value of a field, or `None` if it is not supported or cannot be read now.
    fn ask<T>(
        &mut self,
        field: Field,
        call: impl FnOnce(&Device) -> nvml::Field<T>,
    ) -> Result<Option<T>, Health> {
        let bit = 1 << field as u32;
        if self.unsupported & bit != 0 {
            return Ok(None);
        }
        match call(&self.device) {
            Ok(value) => {
                self.answers = true;
                Ok(Some(value))
            }
            Err(nvml::GPU_IS_LOST | nvml::UNINITIALIZED | nvml::DRIVER_NOT_LOADED) => {
                Err(Health::Lost)
            }
            Err(nvml::RESET_REQUIRED) => Err(Health::NeedsReset),
            Err(nvml::NOT_SUPPORTED | nvml::NO_PERMISSION | nvml::FUNCTION_NOT_FOUND) => {
                self.unsupported |= bit;
                Ok(None)
            }
            // The next call may succeed.
            Err(_) => {
                self.fails = true;
                Ok(None)
            }
        }
    }
}
