//! libcuda, asked without a context: its version and its devices.
//!
//! Functions are looked up by name when they are called, so that an old libcuda, which lacks some, still answers for the others.

use std::ffi::{c_char, c_int, c_uint, c_void};
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

pub(crate) const NAME: &str = match cfg!(windows) {
    // A name alone would be looked for in the program's folder first.
    true => "C:\\Windows\\System32\\nvcuda.dll",
    false => "libcuda.so.1",
};

/// A call that failed, and its status.
pub(crate) type Failed = (&'static str, u32);

/// A library whose functions return a status. One that is missing returns [`NO_FUNCTION`].
pub(crate) struct Functions(Loaded);

/// Declares functions by their names and arguments in the library's header.
macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "as in the header")]
        impl Functions {$(
            pub(crate) unsafe fn $name(&self, $($argument: $type),*) -> Result<(), Failed> {
                let name = stringify!($name);
                // SAFETY: the function has this type, and the caller keeps to what the header demands.
                let status = unsafe {
                    let function = self.0.get::<unsafe extern "C" fn($($type),*) -> u32>(name.as_bytes());
                    function.map_or(NO_FUNCTION, |function| function($($argument),*))
                };
                if status == 0 { Ok(()) } else { Err((name, status)) }
            }
        )*}
    };
}

// cuda.h, where `CUdevice` is an integer and `CUuuid` has 16 bytes, and nccl.h. Of the first seven, and of NCCL's, each may be called at any
// time, writes to its first argument alone, and returns an error for a number that is no device's.
functions! {
    cuDriverGetVersion(version: &mut c_int);
    cuInit(flags: c_uint);
    cuDeviceGetCount(count: &mut c_int);
    cuDeviceGet(device: &mut c_int, ordinal: c_int);
    cuDeviceGetAttribute(value: &mut c_int, attribute: c_int, device: c_int);
    cuDeviceGetUuid_v2(uuid: &mut [u8; 16], device: c_int);
    cuDeviceGetUuid(uuid: &mut [u8; 16], device: c_int);
    cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int);
    cuDevicePrimaryCtxRetain(context: &mut *mut c_void, device: c_int);
    cuDevicePrimaryCtxRelease_v2(device: c_int);
    cuCtxSetCurrent(context: *mut c_void);
    cuCtxSynchronize();
    cuMemAlloc_v2(address: &mut u64, bytes: usize);
    cuMemFree_v2(address: u64);
    cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize);
    cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize);
    cuModuleLoadData(module: &mut *mut c_void, image: *const c_char);
    cuModuleUnload(module: *mut c_void);
    cuModuleGetFunction(function: &mut *mut c_void, module: *mut c_void, name: *const c_char);
    cuLaunchKernel(
        function: *mut c_void, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: *mut c_void, arguments: *mut *mut c_void, options: *mut *mut c_void
    );
    ncclGetVersion(version: &mut c_int);
}

impl Functions {
    /// Loads the library of this name, in the process's own environment.
    pub(crate) fn load(source: &Source, name: &str, limit: Duration) -> Result<Self, LoadError> {
        let (_, library) = patience::load_first(&locate(source, &[name]), name, limit)?;
        Ok(Self(library))
    }
}

/// Asks libcuda for the CUDA that it supports and for its devices.
pub(crate) fn look(source: &Source, limit: Duration) -> Answer<Vec<CudaDevice>> {
    let cuda = Functions::load(source, NAME, limit)?;
    let mut number = 0;
    // SAFETY: as above. This needs no initialization. Where it fails, 0 stays.
    let _ = unsafe { cuda.cuDriverGetVersion(&mut number) };
    Ok((Version::of_cuda(number), Reply::of(devices(&cuda))))
}

fn devices(cuda: &Functions) -> Result<Vec<CudaDevice>, Failed> {
    let mut count = 0;
    // SAFETY: as above. It may be initialized any number of times.
    unsafe {
        cuda.cuInit(0)?;
        cuda.cuDeviceGetCount(&mut count)?;
    }
    let ordinals = 0..count.clamp(0, MOST_DEVICES);
    let devices = ordinals.map(|ordinal| device(cuda, ordinal).unwrap_or_default());
    Ok(devices.collect())
}

fn device(cuda: &Functions, ordinal: c_int) -> Result<CudaDevice, Failed> {
    let (mut device, mut name, mut uuid) = (0, [0u8; 256], [0u8; 16]);
    let (room, bytes) = (name.len() as c_int, name.as_mut_ptr().cast());
    // SAFETY: as above. The name's function writes no more than the length that it is given, which is the array's. The newer one for the
    // UUID distinguishes instances of a divided GPU.
    let (named, identified) = unsafe {
        cuda.cuDeviceGet(&mut device, ordinal)?;
        let newer = cuda.cuDeviceGetUuid_v2(&mut uuid, device);
        let identified = newer.or_else(|_| cuda.cuDeviceGetUuid(&mut uuid, device));
        (cuda.cuDeviceGetName(bytes, room, device), identified)
    };
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: as above.
        let asked = unsafe { cuda.cuDeviceGetAttribute(&mut value, which, device) };
        asked.ok().map(|()| value)
    };
    let capability = attribute(CAPABILITY_MAJOR).zip(attribute(CAPABILITY_MINOR));
    let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text).into_owned();
    Ok(CudaDevice {
        name: named.ok().map(|()| text),
        uuid: identified.ok().map(|()| uuid_text(uuid)),
        capability: capability.map(|(major, minor)| (major.max(0) as u32, minor.max(0) as u32)),
        integrated: attribute(INTEGRATED) == Some(1),
    })
}
