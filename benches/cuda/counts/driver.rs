//! What the simulated driver counts, as `crates/simulated-cuda` describes it.

use std::ffi::c_char;

use libloading::os::unix::Library;
use serde_json::{Map, Value};

/// What cudarc calls before each call.
const CONTEXT: [&str; 2] = ["cuCtxGetCurrent", "cuCtxSetCurrent"];

/// The counts of a run.
pub struct Counts(Value);

impl Counts {
    /// Runs something, and counts what it asks of the driver.
    pub fn of<T>(run: impl FnOnce() -> T) -> (T, Self) {
        control!(simulated_cuda_counts_reset() -> i32);
        control!(simulated_cuda_set_counts(true => bool) -> i32);
        let result = run();
        control!(simulated_cuda_set_counts(false => bool) -> i32);
        let text = |buffer: *mut c_char, room: usize| control!(simulated_cuda_counts(buffer => *mut c_char, room => usize) -> usize);
        let mut bytes = vec![0u8; text(std::ptr::null_mut(), 0)];
        text(bytes.as_mut_ptr().cast(), bytes.len());
        bytes.pop(); // the final zero
        let counts: Value = serde_json::from_slice(&bytes).expect("the driver's JSON");
        (result, Self(counts["all"].clone()))
    }

    /// The number at a path such as `calls.count`.
    pub fn get(&self, path: &str) -> u64 {
        let pointer = format!("/{}", path.replace('.', "/"));
        let number = self.0.pointer(&pointer).and_then(Value::as_u64);
        number.unwrap_or_else(|| panic!("no count {path}"))
    }

    fn members(&self, of: &str) -> &Map<String, Value> {
        let pointer = format!("/{}", of.replace('.', "/"));
        let members = self.0.pointer(&pointer).and_then(Value::as_object);
        members.unwrap_or_else(|| panic!("no counts {of}"))
    }

    /// Launches by kernel, the most frequent first: the name, how many, those of one element, and bytes.
    pub fn kernels(&self) -> Vec<(&str, u64, u64, u64)> {
        let number = |value: &Value, name: &str| value[name].as_u64().expect("a number");
        let kernels = self.members("launches.kernels").iter().map(|(name, of)| {
            let [count, single, bytes] =
                ["count", "one_element", "bytes"].map(|name| number(of, name));
            (name.as_str(), count, single, bytes)
        });
        let mut kernels: Vec<_> = kernels.collect();
        kernels.sort_by_key(|(name, count, ..)| (std::cmp::Reverse(*count), *name));
        kernels
    }

    /// Calls of libcuda by function, the most frequent first, without [`CONTEXT`].
    pub fn functions(&self) -> Vec<(&str, u64)> {
        let functions = self.members("calls.functions").iter();
        let functions = functions.filter(|(name, _)| !CONTEXT.contains(&name.as_str()));
        let number = |number: &Value| number.as_u64().expect("a number");
        let functions = functions.map(|(name, calls)| (name.as_str(), number(calls)));
        let mut functions: Vec<_> = functions.collect();
        functions.sort_by_key(|(name, calls)| (std::cmp::Reverse(*calls), *name));
        functions
    }

    /// Launches of kernels whose names begin like this: those of more than one element, and of one.
    pub fn launches_of(&self, prefix: &str) -> (u64, u64) {
        let mut sums = (0, 0);
        for (name, count, single, _) in self.kernels() {
            if name.starts_with(prefix) {
                sums = (sums.0 + count - single, sums.1 + single);
            }
        }
        sums
    }

    /// Products and convolutions of libraries: calls, and bytes of their operands.
    pub fn products(&self) -> (u64, u64) {
        let mut sums = (0, 0);
        for of in self.members("libraries").values() {
            let number = |name: &str| of[name].as_u64().expect("a number");
            if number("flops") > 0 {
                sums = (sums.0 + number("calls"), sums.1 + number("bytes"));
            }
        }
        sums
    }

    /// Copies in all directions, and their bytes.
    pub fn copies(&self) -> (u64, u64) {
        let mut sums = (0, 0);
        for of in self.members("copies").values() {
            let number = |name: &str| of[name].as_u64().expect("a number");
            sums = (sums.0 + number("count"), sums.1 + number("bytes"));
        }
        sums
    }
}

/// Whether the driver is the simulated one.
pub fn is_simulated() -> bool {
    // SAFETY: the symbol is only looked for.
    let found = unsafe {
        Library::this().get::<unsafe extern "C" fn() -> u32>(b"simulated_cuda_version\0")
    };
    found.is_ok()
}
