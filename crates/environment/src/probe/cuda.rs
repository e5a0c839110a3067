use std::ffi::{c_char, c_int, c_uint};
use std::time::Duration;

use super::libraries::locate;
use crate::facts::Version;
use crate::nvml::uuid_text;
use crate::patience::{self, LoadError, Loaded};
use crate::{Answer, Reply, Source};

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
pub(crate) const NO_FUNCTION: u32 = 500;
/// More devices than any machine has.
const MOST_DEVICES: c_int = 1024;
const INTEGRATED: c_int = 18;
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;

const NAME: &str = match cfg!(windows) {
    // A name alone would be looked for in the program's folder first.
    true => "C:\\Windows\\System32\\nvcuda.dll",
    false => "libcuda.so.1",
};

/// A call that failed, and its status.
pub(crate) type Failed = (&'static str, u32);

/// Calls a function of a library that returns a status, with the types of its arguments: `function(argument: type, …)`.
///
/// To call it is unsafe: the types must be those of the function in the library's header, and the call must be sound.
macro_rules! call {
    ($library:expr, $function:ident($($argument:expr => $type:ty),*)) => {{
        type Function = unsafe extern "C" fn($($type),*) -> u32;
        let name = concat!(stringify!($function), "\0");
        match $library.get::<Function>(name.as_bytes()) {
            Ok(function) => match function($($argument),*) {
                0 => Ok(()),
                status => Err((stringify!($function), status)),
            },
            Err(_) => Err((stringify!($function), $crate::probe::cuda::NO_FUNCTION)),
        }
    }};
}
pub(crate) use call;

/// Loads libcuda, in the process's own environment.
pub(crate) fn load(source: &Source, limit: Duration) -> Result<Loaded, LoadError> {
    let not_found = || LoadError::Absent(format!("{NAME}: not found"));
    let paths = locate(source, &[NAME]);
    // SAFETY: NVIDIA's driver may be loaded at any time; the caller of `Environment::root` vouches for other files.
    unsafe { patience::load(paths.first().ok_or_else(not_found)?, limit) }
}

/// Asks libcuda for the CUDA that it supports and for its devices.
pub(crate) fn look(source: &Source, limit: Duration) -> Answer<Vec<CudaDevice>> {
    let cuda = load(source, limit)?;
    let mut number = 0;
    // SAFETY: `CUresult cuDriverGetVersion(int *)`, which needs no initialization. Where it fails, 0 stays.
    let _ = unsafe { call!(cuda, cuDriverGetVersion(&mut number => *mut c_int)) };
    Ok((Version::of_cuda(number), Reply::of(devices(&cuda))))
}

fn devices(cuda: &Loaded) -> Result<Vec<CudaDevice>, Failed> {
    let mut count = 0;
    // SAFETY: `CUresult cuInit(unsigned int)`, which may be called any number of times, and `CUresult cuDeviceGetCount(int *)`.
    unsafe {
        call!(cuda, cuInit(0 => c_uint))?;
        call!(cuda, cuDeviceGetCount(&mut count => *mut c_int))?;
    }
    let ordinals = 0..count.clamp(0, MOST_DEVICES);
    Ok(ordinals
        .map(|ordinal| device(cuda, ordinal).unwrap_or_default())
        .collect())
}

fn device(cuda: &Loaded, ordinal: c_int) -> Result<CudaDevice, Failed> {
    let (mut device, mut name, mut uuid) = (0, [0u8; 256], [0u8; 16]);
    // SAFETY: `CUresult cuDeviceGet(CUdevice *, int)`.
    unsafe { call!(cuda, cuDeviceGet(&mut device => *mut c_int, ordinal => c_int)) }?;
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: `CUresult cuDeviceGetAttribute(int *, CUdevice_attribute, CUdevice)`.
        let asked = unsafe {
            call!(cuda, cuDeviceGetAttribute(&mut value => *mut c_int, which => c_int, device => c_int))
        };
        asked.ok().map(|()| value)
    };
    let capability = attribute(CAPABILITY_MAJOR).zip(attribute(CAPABILITY_MINOR));
    let (room, bytes) = (name.len() as c_int, name.as_mut_ptr().cast());
    // SAFETY: `CUresult cuDeviceGetName(char *, int, CUdevice)`, which writes no more than the length that it is given.
    let named = unsafe {
        call!(cuda, cuDeviceGetName(bytes => *mut c_char, room => c_int, device => c_int))
    };
    let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text).into_owned();
    // SAFETY: `CUresult cuDeviceGetUuid[_v2](CUuuid *, CUdevice)`, where `CUuuid` is 16 bytes. The newer call distinguishes instances
    // of a divided GPU.
    let identified = unsafe {
        call!(cuda, cuDeviceGetUuid_v2(&mut uuid => *mut [u8; 16], device => c_int))
            .or_else(|_| call!(cuda, cuDeviceGetUuid(&mut uuid => *mut [u8; 16], device => c_int)))
    };
    Ok(CudaDevice {
        name: named.ok().map(|()| text),
        uuid: identified.ok().map(|()| uuid_text(uuid)),
        capability: capability.map(|(major, minor)| (major.max(0) as u32, minor.max(0) as u32)),
        integrated: attribute(INTEGRATED) == Some(1),
    })
}
