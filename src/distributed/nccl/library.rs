use std::env;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::time::Duration;

use crate::environment::patience::{self, Trusted};

const NAME: &str = "libnccl.so.2";
/// The path of another file; empty for no NCCL. It is ignored in a program that has more rights than the user who started it.
const VARIABLE: &str = "HEADROOM_NCCL";
/// The first version with communicators that do not block, as `ncclGetVersion` numbers it.
const FIRST: c_int = 21400;
/// The file has some 300 MB, which may come over a network.
const LIMIT: Duration = Duration::from_secs(60);
const REMEDY: &str = "install NVIDIA's package libnccl2, or `pip install nvidia-nccl-cu13` and add its folder `nvidia/nccl/lib` to \
    LD_LIBRARY_PATH; HEADROOM_NCCL may name the file";

type GetVersion = unsafe extern "C" fn(*mut c_int) -> Code;

/// NCCL, loaded for good.
#[derive(Debug)]
pub(super) struct Library {
    pub(super) functions: Functions,
    /// Such as `2.27.3`.
    pub(super) version: String,
    _library: ManuallyDrop<libloading::Library>,
}

/// Whether the program is setuid or has capabilities of its own, so that its environment is somebody else's.
fn has_more_rights() -> bool {
    #[cfg(target_os = "linux")]
    // SAFETY: the call reads a value that the kernel gave the process at its start.
    return unsafe { libc::getauxval(libc::AT_SECURE) != 0 };
    #[cfg(not(target_os = "linux"))]
    false
}

impl Library {
    /// The error is a sentence for the user.
    pub(super) fn load() -> Result<Self, String> {
        let chosen = env::var_os(VARIABLE).filter(|_| !has_more_rights());
        let path = PathBuf::from(chosen.unwrap_or_else(|| NAME.into()));
        if path.as_os_str().is_empty() {
            return Err(format!("{VARIABLE} is empty, which turns NCCL off"));
        }
        // SAFETY: the file is NCCL by its name or by the user's word; it may be loaded and asked for its version at any time.
        let trusted = unsafe { Trusted::new(&path) };
        let library = patience::load(&trusted, LIMIT)
            .map_err(|error| format!("NCCL cannot be loaded ({error}): {REMEDY}"))?;
        let unlike = |error: libloading::Error| {
            format!("{} is not NCCL ({error}): {REMEDY}", path.display())
        };
        let mut version = 0;
        // SAFETY: as above.
        unsafe {
            let get_version: GetVersion = *library.get(b"ncclGetVersion\0").map_err(unlike)?;
            get_version(&mut version);
        }
        if version < FIRST {
            return Err(format!(
                "NCCL {} is too old, 2.14 is the first that can be used: {REMEDY}",
                text(version)
            ));
        }
        // SAFETY: the version has been checked, and the library is never unloaded.
        let functions = unsafe { Functions::of(&library) }.map_err(unlike)?;
        Ok(Self {
            functions,
            version: text(version),
            _library: library,
        })
    }

    /// Such as `NCCL 2.27.3`.
    pub(super) fn name(&self) -> String {
        format!("NCCL {}", self.version)
    }

    /// The name of a new communicator, which rank 0 makes for all.
    pub(super) fn unique_id(&self) -> Result<UniqueId, String> {
        let mut id = UniqueId([0; 128]);
        match (self.functions.unique_id)(&mut id) {
            SUCCESS => Ok(id),
            code => Err(self.describe(code, null_mut())),
        }
    }

    /// NCCL's own words on an error, with a remedy where there is one. `comm` is live, or null.
    pub(super) fn describe(&self, code: Code, comm: Comm) -> String {
        // SAFETY: both take any code, and null for no communicator, and return null or a C string that lives until the next call.
        let [name, last] = unsafe {
            let texts = [
                (self.functions.error_string)(code),
                (self.functions.last_error)(comm),
            ];
            texts.map(|text| match text.is_null() {
                true => String::new(),
                false => CStr::from_ptr(text).to_string_lossy().into_owned(),
            })
        };
        let remedy = match code {
            UNHANDLED_CUDA_ERROR if last.contains("out of memory") => {
                "; NCCL takes memory outside the pool: lower the limit of `DeviceMemory`, so that some hundred MiB stay free"
            }
            _ => "; NCCL_DEBUG=WARN prints more",
        };
        let last = last.trim();
        match last.is_empty() {
            true => format!("{name}{remedy}"),
            false => format!("{name}: {last}{remedy}"),
        }
    }
}

/// As NCCL numbers versions: 2708 is 2.7.8, and from 2.9 on 21403 is 2.14.3.
fn text(version: c_int) -> String {
    let unit = match version {
        ..10000 => 1000,
        _ => 10000,
    };
    let (major, minor) = (version / unit, version % unit / 100);
    format!("{major}.{minor}.{}", version % 100)
}

// The functions of NCCL that the engine calls, as its header declares them since version 2.14.

/// `ncclResult_t`.
pub(super) type Code = c_uint;
pub(super) const SUCCESS: Code = 0;
const UNHANDLED_CUDA_ERROR: Code = 1;
pub(super) const SYSTEM_ERROR: Code = 2;
pub(super) const REMOTE_ERROR: Code = 6;
pub(super) const IN_PROGRESS: Code = 7;

/// `ncclDataType_t`.
pub(super) const UINT8: c_uint = 1;
pub(super) const FLOAT32: c_uint = 7;
pub(super) const FLOAT64: c_uint = 8;

/// `ncclRedOp_t`.
pub(super) const SUM: c_uint = 0;

/// `ncclComm_t` and `cudaStream_t`, which is the driver's `CUstream`.
pub(super) type Comm = *mut c_void;
pub(super) type Stream = *mut c_void;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId(pub(super) [u8; 128]);

/// `ncclConfig_t` of version 2.14. Later versions take the fields that they have added from their defaults.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

impl Config {
    pub(super) const NON_BLOCKING: Self = Self {
        size: size_of::<Self>(),
        magic: 0xcafe_beef,
        version: 21400,
        blocking: 0,
    };
}

const _: () = assert!(size_of::<Config>() == 24 && size_of::<UniqueId>() == 128);

macro_rules! functions {
    ($($name:ident = $symbol:literal: $function:ty;)+) => {
        #[derive(Debug)]
        pub(super) struct Functions {
            $(pub(super) $name: $function,)+
        }

        impl Functions {
            /// # Safety
            /// The library must be NCCL 2.14 or later, and stay loaded.
            pub(super) unsafe fn of(library: &libloading::Library) -> Result<Self, libloading::Error> {
                // SAFETY: NCCL's functions of these names have these signatures. Those without `unsafe` may be called with any arguments.
                unsafe {
                    Ok(Self { $($name: *library.get($symbol)?,)+ })
                }
            }
        }
    };
}

functions! {
    unique_id = b"ncclGetUniqueId\0": extern "C" fn(&mut UniqueId) -> Code;
    init = b"ncclCommInitRankConfig\0":
        unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> Code;
    async_error = b"ncclCommGetAsyncError\0": unsafe extern "C" fn(Comm, *mut Code) -> Code;
    finalize = b"ncclCommFinalize\0": unsafe extern "C" fn(Comm) -> Code;
    destroy = b"ncclCommDestroy\0": unsafe extern "C" fn(Comm) -> Code;
    abort = b"ncclCommAbort\0": unsafe extern "C" fn(Comm) -> Code;
    reduce_scatter = b"ncclReduceScatter\0":
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_uint, c_uint, Comm, Stream) -> Code;
    all_gather = b"ncclAllGather\0":
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_uint, Comm, Stream) -> Code;
    broadcast = b"ncclBroadcast\0":
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_uint, c_int, Comm, Stream) -> Code;
    error_string = b"ncclGetErrorString\0": extern "C" fn(Code) -> *const c_char;
    last_error = b"ncclGetLastError\0": unsafe extern "C" fn(Comm) -> *const c_char;
}
