//! What NVML is asked about one GPU.

use std::ffi::{c_char, c_uint};
use std::mem::size_of;
use std::ptr::null_mut;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t, nvmlUtilization_t,
};

use super::library::{INSUFFICIENT_SIZE, Nvml, read};
use super::{Field, GpuReading, MemoryReadout, Remapped, text};

const UNCORRECTED: u32 = 1;
const VOLATILE: u32 = 0;
const AGGREGATE: u32 = 1;
const BY_SINGLE_BIT_ERRORS: u32 = 0;
const BY_DOUBLE_BIT_ERRORS: u32 = 1;
const GPU_SENSOR: u32 = 0;
const SLOWDOWN: u32 = 1;

/// A getter of one value of a device.
macro_rules! value {
    ($self:ident, $device:expr, $function:ident $(, $argument:expr)*; $initial:expr) => {
        // SAFETY: the device is a handle of this library, and the place for the value outlives the call.
        read(&$self.library.$function, $initial, |call, place| unsafe {
            call($device $(, $argument)*, place)
        })
    };
}

/// A getter of two values of a device.
macro_rules! pair {
    ($self:ident, $device:expr, $function:ident; $initial:expr) => {
        // SAFETY: the device is a handle of this library, and the places for both values outlive the call.
        read(&$self.library.$function, ($initial, $initial), |call, (one, two)| unsafe {
            call($device, one, two)
        })
    };
}

/// A getter of a text of a device.
macro_rules! text_of {
    ($self:ident, $device:expr, $function:ident) => {
        // SAFETY: the device is a handle of this library; no more is written than the length that it is told.
        read(&$self.library.$function, [0 as c_char; 96], |call, room| unsafe {
            call($device, room.as_mut_ptr(), room.len() as c_uint)
        })
        .map(|room| text(&room))
    };
}

impl Nvml {
    pub(super) fn gpu(&self, index: u32) -> GpuReading {
        let function = &self.library.nvmlDeviceGetHandleByIndex_v2;
        let null: nvmlDevice_t = null_mut();
        // SAFETY: the place for the handle outlives the call.
        let handle = read(function, null, |call, place| unsafe { call(index, place) });
        match handle {
            Ok(device) => self.readings(index, device),
            Err(code) => GpuReading::unreachable(index, code),
        }
    }

    fn readings(&self, index: u32, device: nvmlDevice_t) -> GpuReading {
        let is_on = |value: u32| value != 0;
        GpuReading {
            index,
            handle: Ok(()),
            name: text_of!(self, device, nvmlDeviceGetName),
            uuid: text_of!(self, device, nvmlDeviceGetUUID),
            serial: text_of!(self, device, nvmlDeviceGetSerial),
            pci: self.pci(device),
            capability: pair!(self, device, nvmlDeviceGetCudaComputeCapability; 0)
                .map(|(major, minor)| (major.max(0) as u32, minor.max(0) as u32)),
            memory: self.memory(device),
            processes: self.processes(device),
            graphics: self.graphics(device),
            ecc: pair!(self, device, nvmlDeviceGetEccMode; 0)
                .map(|(now, next)| (is_on(now), is_on(next))),
            uncorrected: self.uncorrected(device),
            retired: self.retired(device),
            retirement_pending: value!(self, device, nvmlDeviceGetRetiredPagesPendingStatus; 0)
                .map(is_on),
            remapped: self.remapped(device),
            // SAFETY: the device is a handle of this library.
            inforom: read(
                &self.library.nvmlDeviceValidateInforom,
                (),
                |call, ()| unsafe { call(device) },
            ),
            temperature: value!(self, device, nvmlDeviceGetTemperature, GPU_SENSOR; 0),
            slowdown: value!(self, device, nvmlDeviceGetTemperatureThreshold, SLOWDOWN; 0),
            power: value!(self, device, nvmlDeviceGetPowerUsage; 0),
            power_limit: value!(self, device, nvmlDeviceGetEnforcedPowerLimit; 0),
            clock_reasons: value!(self, device, nvmlDeviceGetCurrentClocksEventReasons; 0)
                .or_else(|_| value!(self, device, nvmlDeviceGetCurrentClocksThrottleReasons; 0)),
            utilization: value!(self, device, nvmlDeviceGetUtilizationRates;
                nvmlUtilization_t { gpu: 0, memory: 0 })
            .map(|rates| rates.gpu),
            pcie_width: self.both(
                value!(self, device, nvmlDeviceGetCurrPcieLinkWidth; 0),
                value!(self, device, nvmlDeviceGetMaxPcieLinkWidth; 0),
            ),
            pcie_generation: self.both(
                value!(self, device, nvmlDeviceGetCurrPcieLinkGeneration; 0),
                value!(self, device, nvmlDeviceGetMaxPcieLinkGeneration; 0),
            ),
            pcie_replays: value!(self, device, nvmlDeviceGetPcieReplayCounter; 0),
            persistence: value!(self, device, nvmlDeviceGetPersistenceMode; 0).map(is_on),
            mig: pair!(self, device, nvmlDeviceGetMigMode; 0).map(|(now, _)| is_on(now)),
            compute_mode: value!(self, device, nvmlDeviceGetComputeMode; 0),
        }
    }

    fn both<T>(&self, one: Field<T>, two: Field<T>) -> Field<(T, T)> {
        Ok((one?, two?))
    }

    fn pci(&self, device: nvmlDevice_t) -> Field<String> {
        let empty = nvmlPciInfo_t {
            busIdLegacy: [0; 16],
            domain: 0,
            bus: 0,
            device: 0,
            pciDeviceId: 0,
            pciSubSystemId: 0,
            busId: [0; 32],
        };
        let info = value!(self, device, nvmlDeviceGetPciInfo_v3; empty)?;
        Ok(text(&info.busId))
    }

    /// By the newer call, which counts what the driver keeps apart, and by the older one on drivers without it.
    fn memory(&self, device: nvmlDevice_t) -> Field<MemoryReadout> {
        let newer = nvmlMemory_v2_t {
            version: size_of::<nvmlMemory_v2_t>() as c_uint | 2 << 24,
            total: 0,
            reserved: 0,
            free: 0,
            used: 0,
        };
        let newer = value!(self, device, nvmlDeviceGetMemoryInfo_v2; newer);
        if let Ok(memory) = newer {
            return Ok(MemoryReadout {
                total: memory.total,
                used: memory.used,
                free: memory.free,
            });
        }
        let older = nvmlMemory_t {
            total: 0,
            free: 0,
            used: 0,
        };
        let memory = value!(self, device, nvmlDeviceGetMemoryInfo; older)?;
        Ok(MemoryReadout {
            total: memory.total,
            used: memory.used,
            free: memory.free,
        })
    }

    fn uncorrected(&self, device: nvmlDevice_t) -> Field<(u64, u64)> {
        self.both(
            value!(self, device, nvmlDeviceGetTotalEccErrors, UNCORRECTED, VOLATILE; 0),
            value!(self, device, nvmlDeviceGetTotalEccErrors, UNCORRECTED, AGGREGATE; 0),
        )
    }

    /// Counts alone: without room for addresses the call says how many there are.
    fn retired(&self, device: nvmlDevice_t) -> Field<(u32, u32)> {
        let count = |cause| {
            let function = &self.library.nvmlDeviceGetRetiredPages;
            let mut counted = 0;
            // SAFETY: the place for the count outlives the call, and a count of 0 says that there is no room for addresses.
            let outcome = read(function, (), |call, ()| unsafe {
                call(device, cause, &mut counted, null_mut())
            });
            match outcome {
                Ok(()) | Err(INSUFFICIENT_SIZE) => Ok(counted),
                Err(code) => Err(code),
            }
        };
        self.both(count(BY_DOUBLE_BIT_ERRORS), count(BY_SINGLE_BIT_ERRORS))
    }

    fn remapped(&self, device: nvmlDevice_t) -> Field<Remapped> {
        let function = &self.library.nvmlDeviceGetRemappedRows;
        // SAFETY: the device is a handle of this library, and the places for all four values outlive the call.
        let rows = read(
            function,
            [0; 4],
            |call, [corrected, uncorrected, pending, failed]| unsafe {
                call(device, corrected, uncorrected, pending, failed)
            },
        );
        rows.map(|[_, uncorrectable, pending, failed]| Remapped {
            uncorrectable,
            pending: pending != 0,
            failed: failed != 0,
        })
    }
}
