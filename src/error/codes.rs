//! The status codes of NVIDIA's libraries that this crate acts on, by their enum names.
//!
//! Names and numbers are those of CUDA 13 as `cudarc` 0.19.10 binds them. NVIDIA's documentation of `CUresult` says which codes are
//! sticky ("This leaves the process in an inconsistent state … the process must be terminated and relaunched").

use super::circumstances::Resource;
use crate::facts::{self, Status};

/// A status code's meaning for a program that wants to go on.
#[derive(Debug, Clone, Copy)]
pub(super) enum Meaning {
    /// Memory ran out; smaller work may fit.
    Exhausted(Resource),
    /// A library could not run something on the device. It reports nothing more when the context is lost.
    Execution,
    /// The device context is lost to this process.
    Sticky(&'static Status),
    /// The user can act on it, the running program cannot.
    Setup(&'static Status),
}

/// One status code.
#[derive(Debug, Clone, Copy)]
pub(super) struct Code {
    pub(super) name: &'static str,
    pub(super) meaning: Meaning,
}

/// The driver's statuses that leave the context lost. 46 (busy, or in exclusive use) is not one of them.
const STICKY: &[u32] = &[
    214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810,
];

/// The classified codes of NVIDIA's other libraries.
const LIBRARIES: &[(Meaning, &[&str])] = &[
    (
        Meaning::Exhausted(Resource::DeviceMemory),
        &["cudaErrorMemoryAllocation"],
    ),
    (
        Meaning::Exhausted(Resource::LibraryWorkspace),
        &[
            "CUBLAS_STATUS_ALLOC_FAILED",
            "CURAND_STATUS_ALLOCATION_FAILED",
            "CUDNN_STATUS_ALLOC_FAILED",
            "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        ],
    ),
    (
        Meaning::Exhausted(Resource::HostMemory),
        &[
            "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
            "NVRTC_ERROR_OUT_OF_MEMORY",
        ],
    ),
    (
        Meaning::Execution,
        &[
            "CUBLAS_STATUS_MAPPING_ERROR",
            "CUBLAS_STATUS_EXECUTION_FAILED",
            "CUBLAS_STATUS_INTERNAL_ERROR",
            "CURAND_STATUS_LAUNCH_FAILURE",
            "CURAND_STATUS_PREEXISTING_FAILURE",
            "CURAND_STATUS_INTERNAL_ERROR",
            "CUDNN_STATUS_INTERNAL_ERROR",
            "CUDNN_STATUS_EXECUTION_FAILED",
        ],
    ),
];

/// Every known code; errors with any other one come back to the caller unchanged and without advice.
pub(super) fn codes() -> impl Iterator<Item = Code> {
    let driver = facts::CUDA.iter().map(|status| Code {
        name: status.name,
        meaning: match status.number {
            2 => Meaning::Exhausted(Resource::DeviceMemory),
            number if STICKY.contains(&number) => Meaning::Sticky(status),
            _ => Meaning::Setup(status),
        },
    });
    let libraries = LIBRARIES.iter().flat_map(|(meaning, names)| {
        names.iter().map(|name| Code {
            name,
            meaning: *meaning,
        })
    });
    libraries.chain(driver)
}

/// How a code has to stand in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As a word of its own.
    Word,
    /// Inside the `Debug` text of the type that carries it, such as `DriverError(CUDA_ERROR_…`.
    Debug,
}

/// The types whose `Debug` text begins with their name and the code's.
const TYPES: &[&str] = &[
    "DriverError",
    "CublasError",
    "CurandError",
    "NvrtcError",
    "CudnnError",
];

/// A code whose name is in `text` in this form; of several the gravest, since nothing may be retried after a sticky one.
///
/// Only enum names count. The words "out of memory" and a file named after a code are not an exhaustion.
pub(super) fn find(text: &str, form: Form) -> Option<Code> {
    let named = codes().filter(|code| contains(text, code.name, form));
    named.min_by_key(|code| match code.meaning {
        Meaning::Sticky(_) => 0,
        Meaning::Exhausted(_) => 1,
        Meaning::Execution => 2,
        Meaning::Setup(_) => 3,
    })
}

fn contains(text: &str, name: &str, form: Form) -> bool {
    text.match_indices(name).any(|(start, _)| {
        let before = &text[..start];
        let begins = match form {
            Form::Word => !before.chars().next_back().is_some_and(joins),
            Form::Debug => before
                .strip_suffix('(')
                .is_some_and(|before| TYPES.iter().any(|name| before.ends_with(name))),
        };
        let mut after = text[start + name.len()..].chars();
        let (next, second) = (after.next(), after.next());
        begins && !next.is_some_and(|c| extends(c, second))
    })
}

/// Whether `c` before a name makes it part of an identifier or a path.
fn joins(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '/' | '\\' | '.' | '-')
}

/// The same after a name; a full stop ends a sentence unless a letter or digit follows, as in a file name.
fn extends(c: char, next: Option<char>) -> bool {
    match c {
        '.' => next.is_some_and(char::is_alphanumeric),
        _ => c.is_alphanumeric() || matches!(c, '_' | '/' | '\\' | '-'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_found_and_a_sticky_one_first() {
        for code in codes() {
            assert_eq!(find(code.name, Form::Word).unwrap().name, code.name);
            if matches!(code.meaning, Meaning::Sticky(_)) {
                let text = format!("CUDA_ERROR_OUT_OF_MEMORY, then {}", code.name);
                assert_eq!(find(&text, Form::Word).unwrap().name, code.name);
            }
        }
    }

    #[test]
    fn no_name_is_listed_twice_and_every_sticky_number_is_a_fact() {
        let mut names: Vec<_> = codes().map(|code| code.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), codes().count());
        let sticky = codes().filter(|code| matches!(code.meaning, Meaning::Sticky(_)));
        assert_eq!(sticky.count(), STICKY.len());
    }
}
