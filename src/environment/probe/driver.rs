//! libcuda, loaded at run time. The only calls are those that need no context.

use std::ffi::{c_char, c_int, c_uint};
use std::mem::ManuallyDrop;

use libloading::Library;

use super::libraries::locate;
use crate::environment::source::Source;
use crate::nvml;

/// What libcuda says of itself and of its devices; a number where it answered with a status.
#[derive(Debug, Clone)]
pub(in crate::environment) struct Cuda {
    pub(in crate::environment) init: Result<(), u32>,
    pub(in crate::environment) devices: Result<Vec<CudaDevice>, u32>,
}

/// A device in CUDA's order.
#[derive(Debug, Clone, Default)]
pub(in crate::environment) struct CudaDevice {
    pub(in crate::environment) name: Option<String>,
    /// As NVML writes it, `GPU-…`.
    pub(in crate::environment) uuid: Option<String>,
    pub(in crate::environment) capability: Option<(u32, u32)>,
    /// Whether it shares the host's memory.
    pub(in crate::environment) integrated: bool,
}

/// The driver's status for a function that a library does not have: it is too old.
const NO_FUNCTION: u32 = 500;
/// More devices than any machine has.
const MOST_DEVICES: c_int = 1024;
const INTEGRATED: c_int = 18;
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;

/// Loads libcuda and asks for the newest CUDA that it supports, which needs no device and no initialisation.
pub(in crate::environment) fn version(source: &Source) -> Result<Result<i32, u32>, String> {
    Ok(Libcuda::load(source)?.number(c"cuDriverGetVersion"))
}

/// Loads libcuda, initialises it, and asks for the devices. In the process's own environment: libcuda reads no other.
pub(in crate::environment) fn look(source: &Source) -> Result<Cuda, String> {
    let library = Libcuda::load(source)?;
    let init = library.init();
    let devices = init.and_then(|()| {
        let count = library.number(c"cuDeviceGetCount")?;
        Ok((0..count.clamp(0, MOST_DEVICES))
            .map(|ordinal| library.device(ordinal))
            .collect())
    });
    Ok(Cuda { init, devices })
}

/// Never unloaded: the driver has threads and handlers of its own.
struct Libcuda(ManuallyDrop<Library>);

impl Libcuda {
    fn load(source: &Source) -> Result<Self, String> {
        const NAME: &str = match cfg!(windows) {
            true => "nvcuda.dll",
            false => "libcuda.so.1",
        };
        let path = match source.is_this_machine() {
            true => NAME.into(),
            false => locate(source, NAME).ok_or_else(|| format!("{NAME}: not found"))?,
        };
        // SAFETY: loading runs the library's initialisers; this is NVIDIA's driver, which is made to be loaded at any time.
        let library = unsafe { Library::new(&path) };
        let library = library.map_err(|error| error.to_string())?;
        Ok(Self(ManuallyDrop::new(library)))
    }

    /// A function by its name.
    ///
    /// # Safety
    /// `F` is the function's signature in CUDA's headers.
    unsafe fn function<F: Copy>(&self, name: &std::ffi::CStr) -> Result<F, u32> {
        // SAFETY: the caller knows the signature.
        let symbol = unsafe { self.0.get::<F>(name.to_bytes_with_nul()) };
        symbol.map(|symbol| *symbol).map_err(|_| NO_FUNCTION)
    }

    fn init(&self) -> Result<(), u32> {
        // SAFETY: `CUresult cuInit(unsigned int)`; it may be called at any time, any number of times.
        unsafe {
            let init: unsafe extern "C" fn(c_uint) -> u32 = self.function(c"cuInit")?;
            status(init(0))
        }
    }

    /// What a function of one place for a number answers.
    fn number(&self, name: &std::ffi::CStr) -> Result<i32, u32> {
        let mut number = 0;
        // SAFETY: the functions asked for are `CUresult f(int *)`; the place outlives the call.
        unsafe {
            let function: unsafe extern "C" fn(*mut c_int) -> u32 = self.function(name)?;
            status(function(&mut number))?;
        }
        Ok(number)
    }

    fn device(&self, ordinal: c_int) -> CudaDevice {
        let mut device = 0;
        // SAFETY: `CUresult cuDeviceGet(CUdevice *, int)`; the place outlives the call.
        let got = unsafe {
            self.function::<unsafe extern "C" fn(*mut c_int, c_int) -> u32>(c"cuDeviceGet")
                .and_then(|get| status(get(&mut device, ordinal)))
        };
        match got {
            Ok(()) => CudaDevice {
                name: self.name(device),
                uuid: self.uuid(device),
                capability: self
                    .attribute(device, CAPABILITY_MAJOR)
                    .zip(self.attribute(device, CAPABILITY_MINOR)),
                integrated: self.attribute(device, INTEGRATED) == Some(1),
            },
            Err(_) => CudaDevice::default(),
        }
    }

    fn attribute(&self, device: c_int, attribute: c_int) -> Option<u32> {
        let mut number = 0;
        // SAFETY: `CUresult cuDeviceGetAttribute(int *, CUdevice_attribute, CUdevice)`; the place outlives the call.
        unsafe {
            let get: unsafe extern "C" fn(*mut c_int, c_int, c_int) -> u32 =
                self.function(c"cuDeviceGetAttribute").ok()?;
            status(get(&mut number, attribute, device)).ok()?;
        }
        u32::try_from(number).ok()
    }

    fn name(&self, device: c_int) -> Option<String> {
        let mut text = [0; 256];
        // SAFETY: `CUresult cuDeviceGetName(char *, int, CUdevice)`; it writes no more than the length that it is given.
        unsafe {
            let get: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> u32 =
                self.function(c"cuDeviceGetName").ok()?;
            status(get(text.as_mut_ptr(), text.len() as c_int, device)).ok()?;
        }
        Some(nvml::text(&text))
    }

    /// By the call that tells instances of a divided GPU apart, where there is one.
    fn uuid(&self, device: c_int) -> Option<String> {
        let mut bytes = [0u8; 16];
        // SAFETY: `CUresult cuDeviceGetUuid[_v2](CUuuid *, CUdevice)`, where `CUuuid` is 16 bytes; the place outlives the call.
        unsafe {
            let get: unsafe extern "C" fn(*mut [u8; 16], c_int) -> u32 = self
                .function(c"cuDeviceGetUuid_v2")
                .or_else(|_| self.function(c"cuDeviceGetUuid"))
                .ok()?;
            status(get(&mut bytes, device)).ok()?;
        }
        Some(nvml::uuid_text(bytes))
    }
}

fn status(number: u32) -> Result<(), u32> {
    match number {
        0 => Ok(()),
        number => Err(number),
    }
}
