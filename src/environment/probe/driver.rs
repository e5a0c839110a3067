use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::{ManuallyDrop, transmute};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use libloading::Library;

use super::libraries::locate;
use crate::environment::reply::Reply;
use crate::environment::source::Source;
use crate::facts::Version;
use crate::nvml::uuid_text;
use crate::patience::{self, Call, LoadError};

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
const INIT: Call = Call {
    name: c"cuInit",
    // SAFETY: `CUresult cuInit(unsigned int)`.
    make: |function| unsafe {
        transmute::<*mut c_void, Init>(function)(0);
    },
};

const NAME: &str = match cfg!(windows) {
    true => "nvcuda.dll",
    false => "libcuda.so.1",
};

/// libcuda, of which only functions that need no context are called.
struct Libcuda(ManuallyDrop<Library>);

/// Asks libcuda for its devices, in the process's own environment: libcuda reads no other. The newest CUDA that the driver supports is set
/// before libcuda is initialized, which can hang.
pub(crate) fn look(
    source: &Source,
    limit: Duration,
    version: &OnceLock<Version>,
) -> Result<Reply<Vec<CudaDevice>>, LoadError> {
    let path = match source.is_this_machine() {
        true => Some(PathBuf::from(NAME)),
        false => locate(source, NAME),
    };
    let path = path.ok_or_else(|| LoadError::Absent(format!("{NAME}: not found")))?;
    let library = Libcuda::load(&path, limit)?;
    let number = library.number(c"cuDriverGetVersion").ok();
    if let Some(supported) = number.and_then(Version::of_cuda) {
        version.get_or_init(|| supported);
    }
    Ok(Reply::of(library.devices()))
}

/// Whether this process can load libcuda without hanging or crashing; a missing libcuda is no error here.
pub(crate) fn probe_loading(limit: Duration) -> Result<(), LoadError> {
    match Libcuda::load(Path::new(NAME), limit) {
        Ok(_) | Err(LoadError::Absent(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

impl Libcuda {
    fn load(path: &Path, limit: Duration) -> Result<Self, LoadError> {
        // SAFETY: this is NVIDIA's driver, which may be loaded and initialized at any time; the caller of `Environment::root` vouches for
        // any other file.
        unsafe { patience::load(path, INIT, limit) }.map(Self)
    }

    /// Calls the function of this name.
    ///
    /// # Safety
    /// `F` must be the function's signature in CUDA's headers.
    unsafe fn call<F: Copy>(&self, name: &CStr, call: impl FnOnce(F) -> u32) -> Result<(), u32> {
        // SAFETY: the caller knows the signature.
        let function = unsafe { self.0.get::<F>(name.to_bytes_with_nul()) };
        match call(*function.map_err(|_| NO_FUNCTION)?) {
            0 => Ok(()),
            status => Err(status),
        }
    }

    fn devices(&self) -> Result<Vec<CudaDevice>, (&'static str, u32)> {
        // SAFETY: `CUresult cuInit(unsigned int)`; it may be called at any time, any number of times.
        unsafe { self.call(c"cuInit", |init: Init| init(0)) }
            .map_err(|status| ("cuInit", status))?;
        let count = self.number(c"cuDeviceGetCount");
        let count = count.map_err(|status| ("cuDeviceGetCount", status))?;
        let ordinals = 0..count.clamp(0, MOST_DEVICES);
        Ok(ordinals
            .map(|ordinal| self.device(ordinal).unwrap_or_default())
            .collect())
    }

    /// The result of a function that writes one number.
    fn number(&self, name: &CStr) -> Result<c_int, u32> {
        let mut number = 0;
        // SAFETY: the functions asked for are `CUresult f(int *)`; the place outlives the call.
        unsafe { self.call(name, |function: Number| function(&mut number))? };
        Ok(number)
    }

    fn device(&self, ordinal: c_int) -> Result<CudaDevice, u32> {
        type Get = unsafe extern "C" fn(*mut c_int, c_int) -> u32;
        let mut device = 0;
        // SAFETY: `CUresult cuDeviceGet(CUdevice *, int)`; the place outlives the call.
        unsafe { self.call(c"cuDeviceGet", |get: Get| get(&mut device, ordinal))? };
        let attribute = |which| self.attribute(device, which).ok();
        let capability = attribute(CAPABILITY_MAJOR).zip(attribute(CAPABILITY_MINOR));
        Ok(CudaDevice {
            name: self.name(device).ok(),
            uuid: self.uuid(device).ok(),
            capability: capability.map(|(major, minor)| (major.max(0) as u32, minor.max(0) as u32)),
            integrated: attribute(INTEGRATED) == Some(1),
        })
    }

    fn attribute(&self, device: c_int, attribute: c_int) -> Result<c_int, u32> {
        type Get = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> u32;
        let mut number = 0;
        // SAFETY: `CUresult cuDeviceGetAttribute(int *, CUdevice_attribute, CUdevice)`; the place outlives the call.
        unsafe {
            self.call(c"cuDeviceGetAttribute", |get: Get| {
                get(&mut number, attribute, device)
            })?;
        }
        Ok(number)
    }

    fn name(&self, device: c_int) -> Result<String, u32> {
        type Get = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> u32;
        let mut name = [0u8; 256];
        // SAFETY: `CUresult cuDeviceGetName(char *, int, CUdevice)`; it writes no more than the length that it is given.
        unsafe {
            self.call(c"cuDeviceGetName", |get: Get| {
                get(name.as_mut_ptr().cast(), name.len() as c_int, device)
            })?;
        }
        let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// By the call that distinguishes instances of a divided GPU, if there is one.
    fn uuid(&self, device: c_int) -> Result<String, u32> {
        type Get = unsafe extern "C" fn(*mut [u8; 16], c_int) -> u32;
        let mut bytes = [0u8; 16];
        let mut get = |name| {
            // SAFETY: `CUresult cuDeviceGetUuid[_v2](CUuuid *, CUdevice)`, where `CUuuid` is 16 bytes; the place outlives the call.
            unsafe { self.call(name, |get: Get| get(&mut bytes, device)) }
        };
        get(c"cuDeviceGetUuid_v2").or_else(|_| get(c"cuDeviceGetUuid"))?;
        Ok(uuid_text(bytes))
    }
}
