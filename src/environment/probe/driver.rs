use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::{ManuallyDrop, transmute};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use libloading::Library;

use super::libraries::locate;
use crate::environment::{Answer, Reply, Source};
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

/// Asks libcuda for its devices, in the process's own environment. The CUDA that it supports is set before the initialization, which can hang.
pub(crate) fn look(
    source: &Source,
    limit: Duration,
    version: &OnceLock<Version>,
) -> Answer<Vec<CudaDevice>> {
    let not_found = || LoadError::Absent(format!("{NAME}: not found"));
    let paths = locate(source, &[NAME]);
    let library = Libcuda::load(paths.first().ok_or_else(not_found)?, limit)?;
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
        // SAFETY: NVIDIA's driver may be loaded and initialized at any time; the caller of `Environment::root` vouches for other files.
        unsafe { patience::load(path, INIT, limit) }.map(Self)
    }

    /// What the function of this name writes into `place`.
    ///
    /// # Safety
    /// `F` must be the function's signature in CUDA's headers, and `call` a sound call of it.
    unsafe fn read<F: Copy, T>(
        &self,
        name: &CStr,
        mut place: T,
        call: impl FnOnce(F, &mut T) -> u32,
    ) -> Result<T, u32> {
        // SAFETY: the caller knows the signature.
        let function = unsafe { self.0.get::<F>(name.to_bytes_with_nul()) };
        match call(*function.map_err(|_| NO_FUNCTION)?, &mut place) {
            0 => Ok(place),
            status => Err(status),
        }
    }

    fn devices(&self) -> Result<Vec<CudaDevice>, (&'static str, u32)> {
        // SAFETY: `CUresult cuInit(unsigned int)`; it may be called at any time, any number of times.
        let init = unsafe { self.read(c"cuInit", (), |init: Init, _| init(0)) };
        init.map_err(|status| ("cuInit", status))?;
        let count = self.number(c"cuDeviceGetCount");
        let count = count.map_err(|status| ("cuDeviceGetCount", status))?;
        let ordinals = 0..count.clamp(0, MOST_DEVICES);
        let devices = ordinals.map(|ordinal| self.device(ordinal).unwrap_or_default());
        Ok(devices.collect())
    }

    /// The result of a function that writes one number.
    fn number(&self, name: &CStr) -> Result<c_int, u32> {
        // SAFETY: the functions asked for are `CUresult f(int *)`.
        unsafe { self.read(name, 0, |function: Number, number| function(number)) }
    }

    fn device(&self, ordinal: c_int) -> Result<CudaDevice, u32> {
        type Get = unsafe extern "C" fn(*mut c_int, c_int) -> u32;
        // SAFETY: `CUresult cuDeviceGet(CUdevice *, int)`.
        let device = unsafe { self.read(c"cuDeviceGet", 0, |get: Get, to| get(to, ordinal)) }?;
        let attribute = |which| self.attribute(device, which).ok();
        let capability = attribute(CAPABILITY_MAJOR).zip(attribute(CAPABILITY_MINOR));
        Ok(CudaDevice {
            name: self.name(device).ok(),
            uuid: self.uuid(device).ok(),
            capability: capability.map(|(major, minor)| (major.max(0) as u32, minor.max(0) as u32)),
            integrated: attribute(INTEGRATED) == Some(1),
        })
    }

    fn attribute(&self, device: c_int, which: c_int) -> Result<c_int, u32> {
        type Get = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> u32;
        const FUNCTION: &CStr = c"cuDeviceGetAttribute";
        // SAFETY: `CUresult cuDeviceGetAttribute(int *, CUdevice_attribute, CUdevice)`.
        unsafe { self.read(FUNCTION, 0, |get: Get, to| get(to, which, device)) }
    }

    fn name(&self, device: c_int) -> Result<String, u32> {
        type Get = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> u32;
        // SAFETY: `CUresult cuDeviceGetName(char *, int, CUdevice)`; it writes no more than the length that it is given.
        let name = unsafe {
            self.read(c"cuDeviceGetName", [0u8; 256], |get: Get, to| {
                get(to.as_mut_ptr().cast(), to.len() as c_int, device)
            })
        }?;
        let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// By the call that distinguishes instances of a divided GPU, if there is one.
    fn uuid(&self, device: c_int) -> Result<String, u32> {
        type Get = unsafe extern "C" fn(*mut [u8; 16], c_int) -> u32;
        // SAFETY: `CUresult cuDeviceGetUuid[_v2](CUuuid *, CUdevice)`, where `CUuuid` is 16 bytes.
        let read = |name| unsafe { self.read(name, [0u8; 16], |get: Get, to| get(to, device)) };
        let bytes = read(c"cuDeviceGetUuid_v2").or_else(|_| read(c"cuDeviceGetUuid"));
        bytes.map(uuid_text)
    }
}
