//! NVML while it answers for one GPU.

use std::cell::Cell;
use std::fmt;

use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, PcieUtilCounter, TemperatureSensor,
};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlMemory_t, nvmlProcessInfo_t, nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_SUCCESS,
};

use crate::monitor::{Health, HeldDown, Sample};

/// NVML's number for memory that it is not told.
const NOT_AVAILABLE: u64 = u64::MAX;
/// Room for so many processes on one GPU; more are met with more room at the next sample.
const PROCESSES: usize = 64;

pub(super) struct Session {
    nvml: Nvml,
    device: nvmlDevice_t,
    /// Fields that this GPU or this driver does not have: not asked for again.
    unsupported: Cell<u32>,
    processes: Vec<nvmlProcessInfo_t>,
    lists_own_process: bool,
    /// To and from the GPU, as last measured, in bytes a second.
    traffic: (Option<u64>, Option<u64>),
    power_limit: Option<u64>,
    ecc_errors: Option<u64>,
}

// SAFETY: NVML may be called from any thread, and the handle is good wherever `nvml` is, beside which it lives.
unsafe impl Send for Session {}

/// A number for what is asked, for `unsupported`.
#[derive(Debug, Clone, Copy)]
enum Field {
    Memory,
    OldMemory,
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
    pub(super) fn begin(nvml: Nvml, uuid: &str) -> Option<Self> {
        let device = nvml.device_by_uuid(uuid).ok()?;
        // SAFETY: used only together with `nvml`, which it came from.
        let device = unsafe { device.handle() };
        let driver = nvml.sys_driver_version().unwrap_or_default();
        let lists_own_process = in_first_process_namespace() && lists_memory_rightly(&driver);
        Some(Self {
            nvml,
            device,
            unsupported: Cell::new(0),
            processes: blank_processes(PROCESSES),
            lists_own_process,
            traffic: (None, None),
            power_limit: None,
            ecc_errors: None,
        })
    }

    /// Asks for everything; an error tells that the device is gone.
    pub(super) fn look(&mut self, sample: &mut Sample, looks_closely: bool) -> Result<(), Health> {
        self.look_at_memory(sample)?;
        self.look_at_processes(sample)?;
        let utilisation = self.ask(Field::Utilisation, |device| device.utilization_rates())?;
        sample.utilisation = utilisation.as_ref().map(|rates| rates.gpu.into());
        sample.memory_utilisation = utilisation.map(|rates| rates.memory.into());
        let sensor = TemperatureSensor::Gpu;
        sample.temperature =
            self.number(Field::Temperature, |device| device.temperature(sensor))?;
        sample.power = self.number(Field::Power, |device| device.power_usage())?;
        sample.clock = self.number(Field::Clock, |device| device.clock_info(Clock::SM))?;
        let memory_clock = |device: &Device<'_>| device.clock_info(Clock::Memory);
        sample.memory_clock = self.number(Field::MemoryClock, memory_clock)?;
        let bits = self.ask(Field::HeldDown, |device| self.held_down(device))?;
        sample.held_down = bits.map(HeldDown::from_bits);
        if looks_closely {
            self.look_closely()?;
        }
        (sample.pcie_received, sample.pcie_sent) = self.traffic;
        (sample.power_limit, sample.ecc_errors) = (self.power_limit, self.ecc_errors);
        Ok(())
    }

    /// What changes slowly, or takes long: for traffic the driver counts for 20 ms in each direction.
    fn look_closely(&mut self) -> Result<(), Health> {
        let kilobytes = |counter| move |device: &Device<'_>| device.pcie_throughput(counter);
        let received = self.number(Field::PcieReceived, kilobytes(PcieUtilCounter::Receive))?;
        let sent = self.number(Field::PcieSent, kilobytes(PcieUtilCounter::Send))?;
        self.power_limit =
            self.number(Field::PowerLimit, |device| device.enforced_power_limit())?;
        let errors = |device: &Device<'_>| {
            device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile)
        };
        self.ecc_errors = self.ask(Field::EccErrors, errors)?;
        let bytes = |kilobytes: u64| kilobytes.saturating_mul(1000);
        self.traffic = (received.map(bytes), sent.map(bytes));
        Ok(())
    }

    fn device(&self) -> Device<'_> {
        // SAFETY: the handle came from this `nvml`.
        unsafe { Device::new(self.device, &self.nvml) }
    }

    fn number(
        &self,
        field: Field,
        call: impl FnOnce(&Device<'_>) -> Result<u32, NvmlError>,
    ) -> Result<Option<u64>, Health> {
        Ok(self.ask(field, call)?.map(u64::from))
    }

    /// What a field says: `None` where it is not there, or not now.
    fn ask<T>(
        &self,
        field: Field,
        call: impl FnOnce(&Device<'_>) -> Result<T, NvmlError>,
    ) -> Result<Option<T>, Health> {
        let bit = 1 << field as u32;
        if self.unsupported.get() & bit != 0 {
            return Ok(None);
        }
        match call(&self.device()) {
            Ok(value) => Ok(Some(value)),
            Err(NvmlError::GpuLost | NvmlError::Uninitialized | NvmlError::DriverNotLoaded) => {
                Err(Health::Lost)
            }
            Err(NvmlError::ResetRequired) => Err(Health::NeedsReset),
            Err(
                NvmlError::NotSupported
                | NvmlError::NoPermission
                | NvmlError::FailedToLoadSymbol(_),
            ) => {
                self.unsupported.set(self.unsupported.get() | bit);
                Ok(None)
            }
            // It may answer the next time.
            Err(_) => Ok(None),
        }
    }

    /// By the second version of the call, which does not count what the driver keeps for itself as used; older drivers have the
    /// first. A total of 0 is what GPUs without memory of their own answer.
    fn look_at_memory(&self, sample: &mut Sample) -> Result<(), Health> {
        let memory = self.ask(Field::Memory, |device| device.memory_info())?;
        let memory = match memory.map(|memory| (memory.total, memory.used, memory.free)) {
            None => self.ask(Field::OldMemory, |device| self.old_memory(device))?,
            memory => memory,
        };
        if let Some((total, used, free)) = memory.filter(|(total, ..)| *total > 0) {
            (sample.total, sample.used, sample.free) = (Some(total), Some(used), Some(free));
        }
        Ok(())
    }

    fn old_memory(&self, _: &Device<'_>) -> Result<(u64, u64, u64), NvmlError> {
        let call = symbol(&self.nvml.lib().nvmlDeviceGetMemoryInfo)?;
        let mut memory = nvmlMemory_t {
            total: 0,
            free: 0,
            used: 0,
        };
        // SAFETY: the handle is good as long as `nvml` lives; the place is one for what the call writes.
        nvml_wrapper::error::nvml_try(unsafe { call(self.device, &mut memory) })?;
        Ok((memory.total, memory.used, memory.free))
    }

    /// All bits, those included that the wrapper has no name for.
    fn held_down(&self, _: &Device<'_>) -> Result<u64, NvmlError> {
        let mut bits = 0;
        let library = self.nvml.lib();
        let answer = match symbol(&library.nvmlDeviceGetCurrentClocksEventReasons) {
            // SAFETY: the handle is good as long as `nvml` lives; the place is one for a number.
            Ok(call) => unsafe { call(self.device, &mut bits) },
            // The name that it had before CUDA 12.2.
            Err(_) => {
                let call = symbol(&library.nvmlDeviceGetCurrentClocksThrottleReasons)?;
                // SAFETY: likewise.
                unsafe { call(self.device, &mut bits) }
            }
        };
        nvml_wrapper::error::nvml_try(answer)?;
        Ok(bits)
    }

    /// Into a list that is kept, unlike the wrapper's: a sample allocates nothing.
    fn look_at_processes(&mut self, sample: &mut Sample) -> Result<(), Health> {
        if !self.lists_own_process {
            return Ok(());
        }
        let mut processes = std::mem::take(&mut self.processes);
        let listed = self.ask(Field::Processes, |_| self.list(&mut processes));
        self.processes = processes;
        let Some(count) = listed? else { return Ok(()) };
        let own = std::process::id();
        let (mut mine, mut others) = (None, Some(0u64));
        for process in self.processes.iter().take(count) {
            let bytes = Some(process.usedGpuMemory).filter(|bytes| *bytes != NOT_AVAILABLE);
            match process.pid == own {
                true => mine = bytes,
                false => {
                    others = others
                        .zip(bytes)
                        .map(|(sum, more)| sum.saturating_add(more))
                }
            }
        }
        sample.process = mine;
        sample.others = others;
        Ok(())
    }

    fn list(&self, processes: &mut Vec<nvmlProcessInfo_t>) -> Result<usize, NvmlError> {
        let library = self.nvml.lib();
        let call = symbol(&library.nvmlDeviceGetComputeRunningProcesses_v3)?;
        let mut count = processes.len() as u32;
        // SAFETY: the handle is good as long as `nvml` lives, and there is room for `count` processes.
        match unsafe { call(self.device, &mut count, processes.as_mut_ptr()) } {
            #[allow(non_upper_case_globals)]
            nvmlReturn_enum_NVML_SUCCESS => Ok((count as usize).min(processes.len())),
            #[allow(non_upper_case_globals)]
            nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE => {
                *processes = blank_processes(count as usize + PROCESSES);
                Err(NvmlError::InsufficientSize(None))
            }
            other => Err(nvml_wrapper::error::nvml_try(other)
                .err()
                .unwrap_or(NvmlError::Unknown)),
        }
    }
}

fn symbol<T: Copy, E>(symbol: &Result<T, E>) -> Result<T, NvmlError> {
    match symbol {
        Ok(symbol) => Ok(*symbol),
        Err(_) => Err(NvmlError::NotSupported),
    }
}

fn blank_processes(count: usize) -> Vec<nvmlProcessInfo_t> {
    let blank = nvmlProcessInfo_t {
        pid: 0,
        usedGpuMemory: 0,
        gpuInstanceId: 0,
        computeInstanceId: 0,
    };
    vec![blank; count]
}

/// In a container a process has a number of its own there, and the driver lists the host's: they must not be compared.
fn in_first_process_namespace() -> bool {
    // The number that Linux gives the first one; elsewhere there are none.
    match std::fs::read_link("/proc/self/ns/pid") {
        Ok(namespace) => namespace.as_os_str() == "pid:[4026531836]",
        Err(_) => true,
    }
}

/// Drivers 535.43 to 535.85 mix up the fields of the list.
fn lists_memory_rightly(driver: &str) -> bool {
    let mut parts = driver.split('.').map(str::parse::<u32>);
    !matches!(
        (parts.next(), parts.next()),
        (Some(Ok(535)), Some(Ok(43..=85)))
    )
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("unsupported", &self.unsupported)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_that_list_memory_wrongly_are_known() {
        for (driver, rightly) in [
            ("535.54.03", false),
            ("535.86.10", true),
            ("580.65.06", true),
            ("535", true),
            ("", true),
        ] {
            assert_eq!(lists_memory_rightly(driver), rightly, "{driver}");
        }
    }
}
