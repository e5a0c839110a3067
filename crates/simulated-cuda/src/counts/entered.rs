//! Which function of which library a program has called. Every entry point of libcuda, cuBLAS, cuDNN and cuRAND runs its body by `answer`,
//! which hands that body to [`call`]: the body is a closure in the entry point, so the name of its type has the function's name in it.

use std::any::type_name;
use std::cell::Cell;

use super::{are_on, count};

/// What is counted for a body without a function's name in it: nothing that is exported has such a body.
const UNNAMED: &str = "";

thread_local! {
    /// The function that this thread has called last.
    static FUNCTION: Cell<&'static str> = const { Cell::new(UNNAMED) };
}

/// The first part of a path that is named as CUDA's functions are: `cu`, the library in small letters, and a capital letter.
fn name(path: &'static str) -> &'static str {
    let mut parts = path.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let is_function = |part: &&str| {
        let rest = part.strip_prefix("cu");
        let rest =
            rest.map(|rest| rest.trim_start_matches(|letter: char| letter.is_ascii_lowercase()));
        rest.is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_uppercase()))
    };
    parts.find(is_function).unwrap_or(UNNAMED)
}

/// Whether a function is libcuda's own: its name has its capital letter after `cu`.
fn is_driver(name: &str) -> bool {
    name.as_bytes().get(2).is_some_and(u8::is_ascii_uppercase)
}

/// Counts a call of the entry point whose body this is.
#[inline]
pub fn call<F>(_body: &F) {
    if are_on() {
        enter(type_name::<F>());
    }
}

/// Out of the way of the calls, while counting is off.
#[cold]
#[inline(never)]
fn enter(path: &'static str) {
    let name = name(path);
    if name == UNNAMED {
        return;
    }
    // A destructor of another thread-local value may still call the driver.
    _ = FUNCTION.try_with(|function| function.set(name));
    count(|counts| match is_driver(name) {
        true => *counts.calls.entry(name).or_default() += 1,
        false => counts.libraries.entry(name).or_default().calls += 1,
    });
}

/// The function that this thread has called last.
pub fn function() -> &'static str {
    FUNCTION.try_with(Cell::get).unwrap_or(UNNAMED)
}

#[cfg(test)]
mod tests {
    use super::{is_driver, name};

    #[test]
    fn a_function_is_found_in_the_name_of_its_bodys_type() {
        let path = "simulated_cuda::driver::launch::cuLaunchKernel::{{closure}}";
        assert_eq!(name(path), "cuLaunchKernel");
        let path = "simulated_cuda::curand::fill<u32, simulated_cuda::curand::curandGenerate::{{closure}}>::{{closure}}";
        assert_eq!(name(path), "curandGenerate");
        let path = "simulated_cuda::cublas::handle::with<simulated_cuda::cublas::handle::cublasSetStream_v2::{{closure}}>::{{closure}}";
        assert_eq!(name(path), "cublasSetStream_v2");
        assert_eq!(
            name("simulated_cuda::nccl::entry::ncclGetVersion::{{closure}}"),
            ""
        );
        assert!(is_driver("cuMemAlloc_v2") && !is_driver("cublasSgemm_v2"));
    }
}
