//! NVML, NVIDIA's management library, loaded at run time: for the checker, the monitor and the report of an exhaustion.
//!
//! `nvml-wrapper` makes most calls. Some are raw calls through its bindings: the wrapper lacks remapped rows and the newer clock event
//! reasons, asks for memory by a call that old drivers lack, and has no room for the longer lists of processes that some drivers write.

mod processes;

use std::mem;
use std::ptr::null_mut;
use std::sync::Arc;

use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t};

pub use nvml_wrapper_sys::bindings::nvmlMemory_t as Memory;
pub use processes::{Neighbour, Processes, knows_processes, neighbours};

use crate::Severity;
use crate::facts::Version;
use crate::patience::Trusted;
pub use crate::patience::within;

/// A value, or NVML's return code.
pub type Field<T> = Result<T, u32>;

pub const UNINITIALIZED: u32 = 1;
pub const NOT_SUPPORTED: u32 = 3;
pub const NO_PERMISSION: u32 = 4;
const INSUFFICIENT_SIZE: u32 = 7;
pub const DRIVER_NOT_LOADED: u32 = 9;
const LIBRARY_NOT_FOUND: u32 = 12;
pub const FUNCTION_NOT_FOUND: u32 = 13;
pub const GPU_IS_LOST: u32 = 15;
pub const RESET_REQUIRED: u32 = 16;
const NO_DATA: u32 = 21;

/// Where the driver installs NVML. On Windows by full path, because a name alone would be looked for in the program's folder first.
pub const NAMES: [&str; 2] = match cfg!(windows) {
    true => [
        "C:\\Windows\\System32\\nvml.dll",
        "C:\\Program Files\\NVIDIA Corporation\\NVSMI\\nvml.dll",
    ],
    false => ["libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"],
};

/// A session with NVML; it ends when the last of its devices is dropped.
#[derive(Debug)]
pub struct Nvml {
    wrapper: nvml_wrapper::Nvml,
    /// The version of the kernel module.
    pub driver: Option<Version>,
}

/// The return code behind an error of the wrapper.
fn return_code(error: NvmlError) -> u32 {
    match error {
        NvmlError::LibloadingError(_) => LIBRARY_NOT_FOUND,
        NvmlError::FailedToLoadSymbol(_) => FUNCTION_NOT_FOUND,
        NvmlError::Utf8Error(_) | NvmlError::NulError(_) => NO_DATA,
        error => error.into(),
    }
}

/// NVML where the driver installs it.
pub fn installed() -> Vec<Trusted> {
    let trusted = |name| {
        // SAFETY: the names are those of NVIDIA's library, which may be loaded at any time.
        unsafe { Trusted::new(name) }
    };
    NAMES.map(trusted).into()
}

impl Nvml {
    /// Begins a session with a library that is loaded already.
    pub fn begin(library: &Trusted) -> Field<Arc<Self>> {
        let path = library.path().as_os_str();
        let wrapper = nvml_wrapper::Nvml::builder().lib_path(path).init();
        let wrapper = wrapper.map_err(return_code)?;
        let driver = wrapper.sys_driver_version().ok();
        let driver = driver.and_then(|text| Version::parse(&text));
        let nvml = Arc::new(Self { wrapper, driver });
        // The wrapper would panic when it is dropped, so it never is.
        if nvml.wrapper.lib().nvmlShutdown.is_err() {
            mem::forget(Arc::clone(&nvml));
        }
        Ok(nvml)
    }

    /// Asks the wrapper's session.
    pub fn ask<T>(
        &self,
        question: impl FnOnce(&nvml_wrapper::Nvml) -> Result<T, NvmlError>,
    ) -> Field<T> {
        question(&self.wrapper).map_err(return_code)
    }

    /// A GPU by its index in NVML's order.
    pub fn device(self: &Arc<Self>, index: u32) -> Field<Device> {
        Device::of(self, self.wrapper.device_by_index(index))
    }

    pub fn device_by_uuid(self: &Arc<Self>, uuid: &str) -> Field<Device> {
        Device::of(self, self.wrapper.device_by_uuid(uuid))
    }
}

/// A function that writes one value.
type Read<T> = unsafe extern "C" fn(nvmlDevice_t, *mut T) -> u32;

/// A GPU. The handle is valid as long as the session, which lives as long as this value.
#[derive(Debug, Clone)]
pub struct Device {
    nvml: Arc<Nvml>,
    handle: nvmlDevice_t,
}

/// Rows of memory that were replaced by spare rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remapped {
    pub uncorrectable: u32,
    pub pending: bool,
    pub failed: bool,
}

// SAFETY: NVML may be called from any thread, and the handle is valid in the whole process.
unsafe impl Send for Device {}

impl Device {
    fn of(nvml: &Arc<Nvml>, device: Result<nvml_wrapper::Device<'_>, NvmlError>) -> Field<Self> {
        // SAFETY: the handle is used together with its session alone.
        let handle = unsafe { device.map_err(return_code)?.handle() };
        let nvml = Arc::clone(nvml);
        Ok(Self { nvml, handle })
    }

    /// Asks the wrapper's device.
    pub fn ask<T>(
        &self,
        question: impl FnOnce(&nvml_wrapper::Device<'_>) -> Result<T, NvmlError>,
    ) -> Field<T> {
        // SAFETY: the handle belongs to this session.
        let device = unsafe { nvml_wrapper::Device::new(self.handle, &self.nvml.wrapper) };
        question(&device).map_err(return_code)
    }

    fn functions(&self) -> &NvmlLib {
        self.nvml.wrapper.lib()
    }

    /// Calls a function that the library may lack.
    fn call<F: Copy>(
        &self,
        function: &Result<F, libloading::Error>,
        call: impl FnOnce(F, nvmlDevice_t) -> u32,
    ) -> Field<()> {
        let function = *function.as_ref().map_err(|_| FUNCTION_NOT_FOUND)?;
        match call(function, self.handle) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// What such a function writes into `place`. NVML's functions with these two arguments write one value.
    fn read<T>(&self, function: &Result<Read<T>, libloading::Error>, mut place: T) -> Field<T> {
        // SAFETY: the handle belongs to this session, and the place has the type that the function writes.
        self.call(function, |read, gpu| unsafe { read(gpu, &mut place) })?;
        Ok(place)
    }

    /// The bits of NVML's clock event reasons, called throttle reasons before CUDA 12.2.
    pub fn clock_reasons(&self) -> Field<u64> {
        let functions = self.functions();
        let newer = &functions.nvmlDeviceGetCurrentClocksEventReasons;
        let older = &functions.nvmlDeviceGetCurrentClocksThrottleReasons;
        self.read(newer, 0).or_else(|_| self.read(older, 0))
    }

    /// By the newer call, which does not count the driver's own reserve as used, or by the older call on drivers that lack it.
    pub fn memory(&self) -> Field<Memory> {
        let memory = |total, free, used| Memory { total, free, used };
        match self.ask(|gpu| gpu.memory_info()) {
            Ok(newer) => Ok(memory(newer.total, newer.free, newer.used)),
            // The older call would fail as well.
            Err(code @ (UNINITIALIZED | GPU_IS_LOST | RESET_REQUIRED)) => Err(code),
            Err(_) => self.read(&self.functions().nvmlDeviceGetMemoryInfo, memory(0, 0, 0)),
        }
    }

    /// Whether this GPU can access another one's memory, as `nvmlGpuP2PStatus_t`, in this way of `nvmlGpuP2PCapsIndex_t`.
    pub fn peer_status(&self, other: &Self, way: u32) -> Field<u32> {
        let function = &self.functions().nvmlDeviceGetP2PStatus;
        let mut status = 0;
        // SAFETY: both handles belong to sessions of the same library, which stay open.
        self.call(function, |call, gpu| unsafe {
            call(gpu, other.handle, way, &mut status)
        })?;
        Ok(status)
    }

    /// The number of pages that were retired because of memory errors.
    pub fn retired(&self) -> Field<u32> {
        let function = &self.functions().nvmlDeviceGetRetiredPages;
        let pages = |cause| {
            let mut count = 0;
            // SAFETY: the handle belongs to this session; the count of 0 says that there is no room for addresses.
            let outcome = self.call(function, |call, gpu| unsafe {
                call(gpu, cause, &mut count, null_mut())
            });
            match outcome {
                Ok(()) | Err(INSUFFICIENT_SIZE) => Ok(count),
                Err(code) => Err(code),
            }
        };
        // The causes: many single bit errors, and double bit errors.
        Ok(pages(0)?.saturating_add(pages(1)?))
    }

    pub fn remapped(&self) -> Field<Remapped> {
        let function = &self.functions().nvmlDeviceGetRemappedRows;
        let [mut corrected, mut uncorrectable, mut pending, mut failed] = [0; 4];
        // SAFETY: the handle belongs to this session, and each place is an `unsigned int`.
        self.call(function, |call, gpu| unsafe {
            call(
                gpu,
                &mut corrected,
                &mut uncorrectable,
                &mut pending,
                &mut failed,
            )
        })?;
        Ok(Remapped {
            uncorrectable,
            pending: pending != 0,
            failed: failed != 0,
        })
    }

    /// Uncorrected memory errors since the driver was loaded, or in the GPU's life.
    pub fn uncorrected(&self, counter: EccCounter) -> Field<u64> {
        self.ask(|gpu| gpu.total_ecc_errors(MemoryError::Uncorrected, counter))
    }
}

/// A GPU's UUID as NVML writes it, from the bytes that CUDA gives.
pub fn uuid_text(bytes: [u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(bytes));
    let groups = [0..8, 8..12, 12..16, 16..20, 20..32].map(|group| &digits[group]);
    format!("GPU-{}", groups.join("-"))
}

/// A reason for lower clocks: its bit in NVML's clock event reasons, how bad it is, and a text.
pub type ClockReason = (u64, Severity, &'static str);

/// NVML's reasons for clocks below their maximum.
/// NVIDIA, nvml.h, `nvmlClocksEventReason*`; severities by DCGM and by effect; 2026-11.
const CLOCK_REASONS: [ClockReason; 9] = [
    (0x1, Severity::Ok, "idle"),
    (0x2, Severity::Ok, "clocks set by a user"),
    (0x4, Severity::Note, "power limit"),
    (0x8, Severity::Failure, "hardware slowdown"),
    (0x10, Severity::Ok, "synchronised boost"),
    (0x20, Severity::Warning, "temperature, by software"),
    (0x40, Severity::Failure, "temperature, by hardware"),
    (0x80, Severity::Failure, "power brake, by hardware"),
    (0x100, Severity::Ok, "display clocks"),
];

/// The listed reasons among `bits`.
pub fn clock_reasons(bits: u64) -> impl Iterator<Item = &'static ClockReason> {
    CLOCK_REASONS
        .iter()
        .filter(move |(bit, ..)| bits & bit != 0)
}

/// The bits that are not listed.
pub fn unknown_clock_reasons(bits: u64) -> u64 {
    clock_reasons(bits).fold(bits, |left, (bit, ..)| left & !bit)
}
