use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::{ManuallyDrop, transmute};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use libloading::Library;

use super::libraries::locate;
use crate::environment::source::Source;
use crate::nvml::{text, uuid_text};
use crate::patience::{self, Call, LoadError};

/// What libcuda says of itself and of its devices, or its status.
#[derive(Debug, Clone)]
pub(crate) struct Cuda {
    pub(crate) init: Result<(), u32>,
    pub(crate) devices: Result<Vec<CudaDevice>, u32>,
}

/// A device, in CUDA's order.
#[derive(Debug, Clone, Default)]
pub(crate) struct CudaDevice {
    pub(crate) name: Option<String>,
    /// As NVML writes it, `GPU-…`.
    pub(crate) uuid: Option<String>,
    pub(crate) capability: Option<(u32, u32)>,
    /// Whether it shares the host's memory.
    pub(crate) integrated: bool,
}

/// Our status for a function that the library lacks, because it is too old.
const NO_FUNCTION: u32 = 500;
/// More devices than any machine has.
const MOST_DEVICES: c_int = 1024;
const INTEGRATED: c_int = 18;
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;

type Init = unsafe extern "C" fn(c_uint) -> u32;
type Number = unsafe extern "C" fn(*mut c_int) -> u32;

/// What the child process calls.
const CALLS: [Call; 2] = [
    Call {
        name: c"cuDriverGetVersion",
        // SAFETY: `CUresult cuDriverGetVersion(int *)`; the place outlives the call.
        make: |function| unsafe {
            transmute::<*mut c_void, Number>(function)(&mut 0);
        },
    },
    Call {
        name: c"cuInit",
        // SAFETY: `CUresult cuInit(unsigned int)`.
        make: |function| unsafe {
            transmute::<*mut c_void, Init>(function)(0);
        },
    },
];

/// libcuda, of which only functions that need no context are called.
pub(crate) struct Libcuda(ManuallyDrop<Library>);

/// libcuda, which several probes load once.
pub(crate) type SharedLibcuda = Arc<OnceLock<Result<Libcuda, LoadError>>>;

/// The newest CUDA that the driver supports, which needs no device and no initialization.
pub(crate) fn version(
    source: &Source,
    shared: &SharedLibcuda,
    limit: Duration,
) -> Result<Result<i32, u32>, LoadError> {
    let library = shared.get_or_init(|| Libcuda::load(source, limit));
    let library = library.as_ref().map_err(Clone::clone)?;
    Ok(library.number(c"cuDriverGetVersion"))
}

/// Initializes libcuda and asks for the devices, in the process's own environment: libcuda reads no other.
pub(crate) fn look(
    source: &Source,
    shared: &SharedLibcuda,
    limit: Duration,
) -> Result<Cuda, LoadError> {
    let library = shared.get_or_init(|| Libcuda::load(source, limit));
    let library = library.as_ref().map_err(Clone::clone)?;
    let init = library.init();
    let devices = init.and_then(|()| {
        let count = library.number(c"cuDeviceGetCount")?;
        let ordinals = 0..count.clamp(0, MOST_DEVICES);
        Ok(ordinals.map(|ordinal| library.device(ordinal)).collect())
    });
    Ok(Cuda { init, devices })
}

/// Whether this process can load libcuda without hanging or crashing; a missing libcuda is no error here.
pub(crate) fn probe_loading(limit: Duration) -> Result<(), String> {
    match Libcuda::load_file(Path::new(NAME), limit) {
        Ok(_) | Err(LoadError::Absent(_)) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

const NAME: &str = match cfg!(windows) {
    true => "nvcuda.dll",
    false => "libcuda.so.1",
};

impl Libcuda {
    fn load(source: &Source, limit: Duration) -> Result<Self, LoadError> {
        let absent = || LoadError::Absent(format!("{NAME}: not found"));
        let path = match source.is_this_machine() {
            true => PathBuf::from(NAME),
            false => locate(source, NAME).ok_or_else(absent)?,
        };
        Self::load_file(&path, limit)
    }

    fn load_file(path: &Path, limit: Duration) -> Result<Self, LoadError> {
        // SAFETY: this is NVIDIA's driver, which may be loaded and initialized at any time; the caller of `Environment::root` vouches for
        // any other file.
        unsafe { patience::load(path, &CALLS, limit) }.map(Self)
    }

    /// A function by its name.
    ///
    /// # Safety
    /// `F` must be the function's signature in CUDA's headers.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> Result<F, u32> {
        // SAFETY: the caller knows the signature.
        let symbol = unsafe { self.0.get::<F>(name.to_bytes_with_nul()) };
        symbol.map(|symbol| *symbol).map_err(|_| NO_FUNCTION)
    }

    fn init(&self) -> Result<(), u32> {
        // SAFETY: `CUresult cuInit(unsigned int)`; it may be called at any time, any number of times.
        unsafe { status(self.function::<Init>(c"cuInit")?(0)) }
    }

    /// The result of a function that writes one number.
    fn number(&self, name: &CStr) -> Result<i32, u32> {
        let mut number = 0;
        // SAFETY: the functions asked for are `CUresult f(int *)`; the place outlives the call.
        unsafe { status(self.function::<Number>(name)?(&mut number))? };
        Ok(number)
    }

    fn device(&self, ordinal: c_int) -> CudaDevice {
        type Get = unsafe extern "C" fn(*mut c_int, c_int) -> u32;
        let mut device = 0;
        // SAFETY: `CUresult cuDeviceGet(CUdevice *, int)`; the place outlives the call.
        let got = unsafe {
            self.function::<Get>(c"cuDeviceGet")
                .and_then(|get| status(get(&mut device, ordinal)))
        };
        if got.is_err() {
            return CudaDevice::default();
        }
        let capability = self
            .attribute(device, CAPABILITY_MAJOR)
            .zip(self.attribute(device, CAPABILITY_MINOR));
        CudaDevice {
            name: self.name(device),
            uuid: self.uuid(device),
            capability,
            integrated: self.attribute(device, INTEGRATED) == Some(1),
        }
    }

    fn attribute(&self, device: c_int, attribute: c_int) -> Option<u32> {
        type Get = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> u32;
        let mut number = 0;
        // SAFETY: `CUresult cuDeviceGetAttribute(int *, CUdevice_attribute, CUdevice)`; the place outlives the call.
        unsafe {
            let get: Get = self.function(c"cuDeviceGetAttribute").ok()?;
            status(get(&mut number, attribute, device)).ok()?;
        }
        u32::try_from(number).ok()
    }

    fn name(&self, device: c_int) -> Option<String> {
        type Get = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> u32;
        let mut name = [0; 256];
        // SAFETY: `CUresult cuDeviceGetName(char *, int, CUdevice)`; it writes no more than the length that it is given.
        unsafe {
            let get: Get = self.function(c"cuDeviceGetName").ok()?;
            status(get(name.as_mut_ptr(), name.len() as c_int, device)).ok()?;
        }
        Some(text(&name))
    }

    /// By the call that distinguishes instances of a divided GPU, if there is one.
    fn uuid(&self, device: c_int) -> Option<String> {
        type Get = unsafe extern "C" fn(*mut [u8; 16], c_int) -> u32;
        let mut bytes = [0u8; 16];
        // SAFETY: `CUresult cuDeviceGetUuid[_v2](CUuuid *, CUdevice)`, where `CUuuid` is 16 bytes; the place outlives the call.
        unsafe {
            let get = self.function::<Get>(c"cuDeviceGetUuid_v2");
            let get = get.or_else(|_| self.function(c"cuDeviceGetUuid")).ok()?;
            status(get(&mut bytes, device)).ok()?;
        }
        Some(uuid_text(bytes))
    }
}

fn status(number: u32) -> Result<(), u32> {
    match number {
        0 => Ok(()),
        number => Err(number),
    }
}
