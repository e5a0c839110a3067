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

/// A function of a library that returns a status, if the library has it.
pub(crate) struct Function<F> {
    name: &'static str,
    function: Option<F>,
}

impl<F: Copy> Function<F> {
    /// Looks up the function of this name.
    ///
    /// # Safety
    /// `F` must be the type that the library's header gives this function. If `F` may be called without `unsafe`, it must be sound to
    /// call the function with all values of the types of its arguments.
    pub(crate) unsafe fn of(library: &Loaded, name: &'static str) -> Self {
        // SAFETY: the caller's promise. The library is never unloaded.
        let function = unsafe { library.get::<F>(name.as_bytes()) };
        let function = function.ok().map(|function| *function);
        Self { name, function }
    }

    /// Calls it.
    pub(crate) fn call(&self, call: impl FnOnce(F) -> u32) -> Result<(), Failed> {
        match self.function.map_or(NO_FUNCTION, call) {
            0 => Ok(()),
            status => Err((self.name, status)),
        }
    }
}

/// What libcuda can be asked without a context. It answers an unknown device with an error.
pub(crate) struct Questions {
    version: Function<extern "C" fn(&mut c_int) -> u32>,
    pub(crate) init: Function<extern "C" fn(c_uint) -> u32>,
    count: Function<extern "C" fn(&mut c_int) -> u32>,
    pub(crate) device: Function<extern "C" fn(&mut c_int, c_int) -> u32>,
    attribute: Function<extern "C" fn(&mut c_int, c_int, c_int) -> u32>,
    name: Function<unsafe extern "C" fn(*mut c_char, c_int, c_int) -> u32>,
    /// The newer one distinguishes instances of a divided GPU.
    identities: [Function<extern "C" fn(&mut [u8; 16], c_int) -> u32>; 2],
}

impl Questions {
    pub(crate) fn of(cuda: &Loaded) -> Self {
        // SAFETY: the signatures of cuda.h, where `CUdevice` is an integer and `CUuuid` has 16 bytes. Each may be called at any time, writes to
        // its first argument alone, and returns an error for a number that is no device's. To ask for the name is unsafe.
        unsafe {
            Self {
                version: Function::of(cuda, "cuDriverGetVersion"),
                init: Function::of(cuda, "cuInit"),
                count: Function::of(cuda, "cuDeviceGetCount"),
                device: Function::of(cuda, "cuDeviceGet"),
                attribute: Function::of(cuda, "cuDeviceGetAttribute"),
                name: Function::of(cuda, "cuDeviceGetName"),
                identities: ["cuDeviceGetUuid_v2", "cuDeviceGetUuid"]
                    .map(|name| Function::of(cuda, name)),
            }
        }
    }
}

/// Loads libcuda, in the process's own environment.
pub(crate) fn load(source: &Source, limit: Duration) -> Result<Loaded, LoadError> {
    let not_found = || LoadError::Absent(format!("{NAME}: not found"));
    let paths = locate(source, &[NAME]);
    patience::load(paths.first().ok_or_else(not_found)?, limit)
}

/// Asks libcuda for the CUDA that it supports and for its devices.
pub(crate) fn look(source: &Source, limit: Duration) -> Answer<Vec<CudaDevice>> {
    let questions = Questions::of(&load(source, limit)?);
    let mut number = 0;
    // This needs no initialization. Where it fails, 0 stays.
    let _ = questions.version.call(|version| version(&mut number));
    Ok((Version::of_cuda(number), Reply::of(devices(&questions))))
}

fn devices(questions: &Questions) -> Result<Vec<CudaDevice>, Failed> {
    let mut count = 0;
    // It may be initialized any number of times.
    questions.init.call(|init| init(0))?;
    questions.count.call(|get| get(&mut count))?;
    let ordinals = 0..count.clamp(0, MOST_DEVICES);
    Ok(ordinals
        .map(|ordinal| device(questions, ordinal).unwrap_or_default())
        .collect())
}

fn device(questions: &Questions, ordinal: c_int) -> Result<CudaDevice, Failed> {
    let (mut device, mut name, mut uuid) = (0, [0u8; 256], [0u8; 16]);
    questions.device.call(|get| get(&mut device, ordinal))?;
    let attribute = |which| {
        let mut value = 0;
        let asked = questions
            .attribute
            .call(|get| get(&mut value, which, device));
        asked.ok().map(|()| value)
    };
    let capability = attribute(CAPABILITY_MAJOR).zip(attribute(CAPABILITY_MINOR));
    let (room, bytes) = (name.len() as c_int, name.as_mut_ptr().cast());
    // SAFETY: the function writes no more than the length that it is given, which is the array's.
    let named = questions
        .name
        .call(|get| unsafe { get(bytes, room, device) });
    let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text).into_owned();
    let mut identities = questions.identities.iter();
    let is_identified =
        identities.any(|identity| identity.call(|get| get(&mut uuid, device)).is_ok());
    Ok(CudaDevice {
        name: named.ok().map(|()| text),
        uuid: is_identified.then(|| uuid_text(uuid)),
        capability: capability.map(|(major, minor)| (major.max(0) as u32, minor.max(0) as u32)),
        integrated: attribute(INTEGRATED) == Some(1),
    })
}
