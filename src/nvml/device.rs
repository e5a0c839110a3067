//! What NVML is asked about one GPU.

use std::ffi::{c_char, c_uint};
use std::fmt;
use std::sync::Arc;

use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t, nvmlPciInfo_t, nvmlUtilization_t};

use super::library::{Nvml, read};
use super::{Field, text};

const UNCORRECTED: u32 = 1;
const VOLATILE: u32 = 0;
const AGGREGATE: u32 = 1;
const GPU_SENSOR: u32 = 0;
const SLOWDOWN: u32 = 1;
const MULTIPROCESSORS: u32 = 1;
const MEMORY: u32 = 2;
const SENT: u32 = 0;
const RECEIVED: u32 = 1;

/// A GPU, good as long as it lives: the session that it belongs to lives in it.
#[derive(Clone)]
pub(crate) struct Device {
    nvml: Arc<Nvml>,
    pub(super) handle: nvmlDevice_t,
}

// SAFETY: NVML may be called from any thread, by as many at a time as there are, and the handle is good wherever the session is.
unsafe impl Send for Device {}

/// Getters of one value.
macro_rules! values {
    ($($(#[$doc:meta])* fn $name:ident() -> $type:ty = $function:ident($($argument:expr),*);)*) => {
        impl Device {$(
            $(#[$doc])*
            pub(crate) fn $name(&self) -> Field<$type> {
                // SAFETY: the handle is one of this session, and the place for the value outlives the call.
                read(&self.functions().$function, <$type>::default(), |call, place| unsafe {
                    call(self.handle, $($argument,)* place)
                })
            }
        )*}
    };
}

/// Getters of two values.
macro_rules! pairs {
    ($($(#[$doc:meta])* fn $name:ident() -> $type:ty = $function:ident();)*) => {
        impl Device {$(
            $(#[$doc])*
            pub(crate) fn $name(&self) -> Field<($type, $type)> {
                let places = <($type, $type)>::default();
                // SAFETY: the handle is one of this session, and the places for both values outlive the call.
                read(&self.functions().$function, places, |call, (one, two)| unsafe {
                    call(self.handle, one, two)
                })
            }
        )*}
    };
}

/// Getters of a text.
macro_rules! texts {
    ($($(#[$doc:meta])* fn $name:ident() = $function:ident();)*) => {
        impl Device {$(
            $(#[$doc])*
            pub(crate) fn $name(&self) -> Field<String> {
                // SAFETY: the handle is one of this session; no more is written than the length that it is told.
                let room = read(&self.functions().$function, [0 as c_char; 96], |call, room| unsafe {
                    call(self.handle, room.as_mut_ptr(), room.len() as c_uint)
                });
                room.map(|room| text(&room))
            }
        )*}
    };
}

texts! {
    fn name() = nvmlDeviceGetName();
    fn uuid() = nvmlDeviceGetUUID();
    fn serial() = nvmlDeviceGetSerial();
}

values! {
    /// In °C.
    fn temperature() -> u32 = nvmlDeviceGetTemperature(GPU_SENSOR);
    /// Where the clocks are slowed down, in °C.
    fn slowdown() -> u32 = nvmlDeviceGetTemperatureThreshold(SLOWDOWN);
    /// In milliwatts.
    fn power() -> u32 = nvmlDeviceGetPowerUsage();
    /// In milliwatts.
    fn power_limit() -> u32 = nvmlDeviceGetEnforcedPowerLimit();
    /// In MHz.
    fn clock() -> u32 = nvmlDeviceGetClockInfo(MULTIPROCESSORS);
    /// In MHz.
    fn memory_clock() -> u32 = nvmlDeviceGetClockInfo(MEMORY);
    fn event_reasons() -> u64 = nvmlDeviceGetCurrentClocksEventReasons();
    /// Their name before CUDA 12.2.
    fn throttle_reasons() -> u64 = nvmlDeviceGetCurrentClocksThrottleReasons();
    /// To the GPU, in KB a second; the driver counts for 20 ms.
    fn pcie_received() -> u32 = nvmlDeviceGetPcieThroughput(RECEIVED);
    /// From the GPU, likewise.
    fn pcie_sent() -> u32 = nvmlDeviceGetPcieThroughput(SENT);
    fn pcie_width() -> u32 = nvmlDeviceGetCurrPcieLinkWidth();
    fn most_pcie_width() -> u32 = nvmlDeviceGetMaxPcieLinkWidth();
    fn pcie_generation() -> u32 = nvmlDeviceGetCurrPcieLinkGeneration();
    fn most_pcie_generation() -> u32 = nvmlDeviceGetMaxPcieLinkGeneration();
    /// Transfers over the link to the host that had to be repeated.
    fn pcie_replays() -> u32 = nvmlDeviceGetPcieReplayCounter();
    /// Errors that could not be corrected, since the driver was loaded.
    fn uncorrected() -> u64 = nvmlDeviceGetTotalEccErrors(UNCORRECTED, VOLATILE);
    /// The same in the GPU's life.
    fn uncorrected_ever() -> u64 = nvmlDeviceGetTotalEccErrors(UNCORRECTED, AGGREGATE);
    fn retirement_pending() -> u32 = nvmlDeviceGetRetiredPagesPendingStatus();
    fn persistence() -> u32 = nvmlDeviceGetPersistenceMode();
    fn compute_mode() -> u32 = nvmlDeviceGetComputeMode();
}

pairs! {
    /// Major and minor.
    fn capability() -> i32 = nvmlDeviceGetCudaComputeCapability();
    /// Now, and after the next reset.
    fn ecc() -> u32 = nvmlDeviceGetEccMode();
    /// Now, and after the next reset.
    fn mig() -> u32 = nvmlDeviceGetMigMode();
}

impl Device {
    pub(super) fn new(nvml: &Arc<Nvml>, handle: nvmlDevice_t) -> Self {
        let nvml = Arc::clone(nvml);
        Self { nvml, handle }
    }

    pub(super) fn functions(&self) -> &NvmlLib {
        self.nvml.functions()
    }

    pub(super) fn avoids_newest(&self) -> bool {
        self.nvml.avoids_newest
    }

    /// Why the clocks are lower than they could be, by either name.
    pub(crate) fn clock_reasons(&self) -> Field<u64> {
        self.event_reasons().or_else(|_| self.throttle_reasons())
    }

    /// In percent: kernels, and memory.
    pub(crate) fn utilisation(&self) -> Field<(u32, u32)> {
        let function = &self.functions().nvmlDeviceGetUtilizationRates;
        let rates = nvmlUtilization_t { gpu: 0, memory: 0 };
        // SAFETY: the handle is one of this session, and the place for the value outlives the call.
        let rates = read(function, rates, |call, place| unsafe {
            call(self.handle, place)
        });
        rates.map(|rates| (rates.gpu, rates.memory))
    }

    pub(crate) fn pci(&self) -> Field<String> {
        let empty = nvmlPciInfo_t {
            busIdLegacy: [0; 16],
            domain: 0,
            bus: 0,
            device: 0,
            pciDeviceId: 0,
            pciSubSystemId: 0,
            busId: [0; 32],
        };
        let function = &self.functions().nvmlDeviceGetPciInfo_v3;
        // SAFETY: the handle is one of this session, and the place for the value outlives the call.
        let info = read(function, empty, |call, place| unsafe {
            call(self.handle, place)
        });
        info.map(|info| text(&info.busId))
    }

    /// Whether the GPU's own record of itself is sound.
    pub(crate) fn inforom(&self) -> Field<()> {
        let function = &self.functions().nvmlDeviceValidateInforom;
        // SAFETY: the handle is one of this session.
        read(function, (), |call, ()| unsafe { call(self.handle) })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").finish_non_exhaustive()
    }
}
