//! The simulated NVML, built where it is not yet, and what tests order of it.
#![allow(dead_code)] // each user takes its own part

use std::env;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libloading::{Library, Symbol};

/// The path of the simulated `libnvidia-ml`. The first call builds it. Tests without the feature `cuda` take it unoptimized, in a third of
/// the time; with it, scripts/cuda-env.sh has built the optimized one that the driver needs.
pub fn library() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let is_quick = cfg!(all(debug_assertions, not(feature = "cuda")));
        let folder = if is_quick {
            "simulated-nvml"
        } else {
            "simulated-cuda"
        };
        let program = env::current_exe().unwrap();
        let target = program.ancestors().nth(3).unwrap().join(folder);
        // Of this package or of one in its folder `crates`.
        let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let mut scripts = folders.map(|folder| folder.join("crates/simulated-cuda/build.sh"));
        let script = scripts.find(|script| script.exists());
        let script = script.expect("the simulated driver");
        let mut build = Command::new("bash");
        build.arg(script).arg(target.join("lib"));
        if is_quick {
            build.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
        }
        let status = build.env("CARGO_TARGET_DIR", &target).status();
        assert!(
            status.unwrap().success(),
            "the simulated libraries cannot be built"
        );
        target.join("lib/libnvidia-ml.so.1")
    })
}

/// The same library, for its functions by which tests steer it.
pub struct Simulator {
    library: Library,
}

impl Simulator {
    pub fn load() -> Self {
        // SAFETY: it is this project's own, and runs nothing when it is loaded.
        let library = unsafe { Library::new(library()) }.unwrap();
        Self { library }
    }

    /// Calls of `function` answer with `status`; 0: as usual.
    pub fn fail(&self, device: u32, function: &str, status: u32) {
        let name = CString::new(function).unwrap();
        // SAFETY: the function's own signature.
        unsafe {
            let fail: Symbol<unsafe extern "C" fn(u32, *const std::ffi::c_char, u32) -> i32> =
                self.library.get(b"simulated_nvml_fail").unwrap();
            assert_eq!(fail(device, name.as_ptr(), status), 0);
        }
    }

    /// A function that gives one number gives this one.
    pub fn set(&self, device: u32, function: &str, figure: u64) {
        let name = CString::new(function).unwrap();
        // SAFETY: the function's own signature.
        unsafe {
            let set: Symbol<unsafe extern "C" fn(u32, *const std::ffi::c_char, u64) -> i32> =
                self.library.get(b"simulated_nvml_set").unwrap();
            assert_eq!(set(device, name.as_ptr(), figure), 0);
        }
    }

    /// Each call but those for name and UUID takes so long.
    pub fn delay(&self, device: u32, milliseconds: u64) {
        // SAFETY: the function's own signature.
        unsafe {
            let delay: Symbol<extern "C" fn(u32, u64) -> i32> =
                self.library.get(b"simulated_nvml_delay").unwrap();
            assert_eq!(delay(device, milliseconds), 0);
        }
    }

    /// The device is gone, or there again.
    pub fn lose(&self, device: u32, is_lost: bool) {
        // SAFETY: the function's own signature.
        unsafe {
            let lose: Symbol<extern "C" fn(u32, bool) -> i32> =
                self.library.get(b"simulated_nvml_lose").unwrap();
            assert_eq!(lose(device, is_lost), 0);
        }
    }

    /// Another process holds so many bytes.
    pub fn neighbour(&self, device: u32, bytes: u64) {
        // SAFETY: the function's own signature.
        unsafe {
            let set: Symbol<extern "C" fn(u32, u64) -> i32> =
                self.library.get(b"simulated_cuda_neighbour_set").unwrap();
            assert_eq!(set(device, bytes), 0);
        }
    }
}
