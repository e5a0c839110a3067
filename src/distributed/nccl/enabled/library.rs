use std::env;
use std::ffi::{CStr, c_char, c_int};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::time::Duration;

use super::functions::{Code, Comm, Functions, SUCCESS, UNHANDLED_CUDA_ERROR, UniqueId};
use crate::environment::patience;

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

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nccl")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl Library {
    /// The error is a sentence for the user.
    pub(super) fn load() -> Result<Self, String> {
        let chosen = env::var_os(VARIABLE).filter(|_| !has_more_rights());
        let chosen = chosen.map(PathBuf::from);
        if chosen
            .as_ref()
            .is_some_and(|path| path.as_os_str().is_empty())
        {
            return Err(format!("{VARIABLE} is empty, which turns NCCL off"));
        }
        let path = chosen.unwrap_or_else(|| PathBuf::from(NAME));
        // SAFETY: the file is NCCL by its name or by the user's word; it may be loaded and asked for its version at any time.
        let library = unsafe { patience::load(&path, LIMIT) };
        let library =
            library.map_err(|error| format!("NCCL cannot be loaded ({error}): {REMEDY}"))?;
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

    /// The name of a new communicator, which rank 0 makes for all.
    pub(super) fn unique_id(&self) -> Result<UniqueId, String> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: a place for one name, which outlives the call.
        match unsafe { (self.functions.unique_id)(&mut id) } {
            SUCCESS => Ok(id),
            code => Err(self.describe(code, null_mut())),
        }
    }

    /// NCCL's own words on an error, with a remedy where there is one. `comm` is live, or null.
    pub(super) fn describe(&self, code: Code, comm: Comm) -> String {
        // SAFETY: both take any code, and null for no communicator, and return null or a C string that lives until the next call.
        let (name, last) = unsafe {
            (
                string((self.functions.error_string)(code)),
                string((self.functions.last_error)(comm)),
            )
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

/// # Safety
/// `text` is null or a C string.
unsafe fn string(text: *const c_char) -> String {
    match text.is_null() {
        true => String::new(),
        // SAFETY: by contract.
        false => unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned(),
    }
}

/// As NCCL numbers versions: 2708 is 2.7.8, and from 2.9 on 21403 is 2.14.3.
fn text(version: c_int) -> String {
    let unit = match version {
        ..10000 => 1000,
        _ => 10000,
    };
    format!(
        "{}.{}.{}",
        version / unit,
        version % unit / 100,
        version % 100
    )
}
