//! The status codes of NVIDIA's libraries that this crate acts on, by their enum names.
//!
//! Names and numbers are those of CUDA 13 as `cudarc` 0.19.10 binds them; which codes are sticky is NVIDIA's statement in
//! `CUresult`'s documentation («This leaves the process in an inconsistent state … the process must be terminated and
//! relaunched»).

use super::Resource;

/// What a status code means for a program that wants to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Something ran out; smaller work may fit.
    Exhausted(Resource),
    /// A library could not run something on the device; where the context is lost, this is all that it says of it.
    Execution,
    /// The device context is lost; nothing in this process will work again.
    Sticky {
        cause: &'static str,
        remedy: &'static str,
    },
}

/// One status code.
#[derive(Debug, Clone, Copy)]
pub(super) struct Code {
    pub(super) name: &'static str,
    pub(super) number: u32,
    pub(super) meaning: Meaning,
}

const fn exhausted(name: &'static str, number: u32, resource: Resource) -> Code {
    Code {
        name,
        number,
        meaning: Meaning::Exhausted(resource),
    }
}

const fn execution(name: &'static str, number: u32) -> Code {
    Code {
        name,
        number,
        meaning: Meaning::Execution,
    }
}

const fn sticky(
    name: &'static str,
    number: u32,
    cause: &'static str,
    remedy: &'static str,
) -> Code {
    Code {
        name,
        number,
        meaning: Meaning::Sticky { cause, remedy },
    }
}

const APPLICATION_BUG: &str = "run the program under compute-sanitizer to find the kernel";
const HARDWARE: &str =
    "check `nvidia-smi -q -d ECC` and the kernel log for Xid messages; the GPU may need a reset";

/// Every code that is classified; all others come back to the caller unchanged.
pub(super) const CODES: &[Code] = &[
    exhausted("CUDA_ERROR_OUT_OF_MEMORY", 2, Resource::DeviceMemory),
    exhausted("cudaErrorMemoryAllocation", 2, Resource::DeviceMemory),
    exhausted("CUBLAS_STATUS_ALLOC_FAILED", 3, Resource::LibraryWorkspace),
    exhausted(
        "CURAND_STATUS_ALLOCATION_FAILED",
        102,
        Resource::LibraryWorkspace,
    ),
    exhausted("CUDNN_STATUS_ALLOC_FAILED", 2, Resource::LibraryWorkspace),
    exhausted(
        "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        4004,
        Resource::LibraryWorkspace,
    ),
    exhausted(
        "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
        4003,
        Resource::HostMemory,
    ),
    exhausted("NVRTC_ERROR_OUT_OF_MEMORY", 1, Resource::HostMemory),
    execution("CUBLAS_STATUS_MAPPING_ERROR", 11),
    execution("CUBLAS_STATUS_EXECUTION_FAILED", 13),
    execution("CUBLAS_STATUS_INTERNAL_ERROR", 14),
    execution("CURAND_STATUS_LAUNCH_FAILURE", 201),
    execution("CURAND_STATUS_PREEXISTING_FAILURE", 202),
    execution("CURAND_STATUS_INTERNAL_ERROR", 999),
    execution("CUDNN_STATUS_INTERNAL_ERROR", 4000),
    execution("CUDNN_STATUS_EXECUTION_FAILED", 5000),
    sticky(
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        46,
        "the device is in exclusive use or is being reset",
        "check the compute mode and other processes with `nvidia-smi`",
    ),
    sticky(
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        214,
        "an uncorrectable memory error on the GPU",
        HARDWARE,
    ),
    sticky(
        "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        220,
        "an uncorrectable NVLink error",
        HARDWARE,
    ),
    sticky(
        "CUDA_ERROR_CONTAINED",
        226,
        "a memory error that the GPU contained to this process",
        HARDWARE,
    ),
    sticky(
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        700,
        "a kernel read or wrote an invalid address",
        APPLICATION_BUG,
    ),
    sticky(
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        702,
        "a kernel ran longer than the display watchdog allows",
        "use a GPU without a display, or smaller kernels",
    ),
    sticky(
        "CUDA_ERROR_ASSERT",
        710,
        "a device-side assertion failed",
        APPLICATION_BUG,
    ),
    sticky(
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        714,
        "the GPU's call stack is corrupt",
        APPLICATION_BUG,
    ),
    sticky(
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        715,
        "a kernel executed an illegal instruction",
        APPLICATION_BUG,
    ),
    sticky(
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        716,
        "a kernel used a misaligned address",
        APPLICATION_BUG,
    ),
    sticky(
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        717,
        "a kernel used an address of the wrong space",
        APPLICATION_BUG,
    ),
    sticky(
        "CUDA_ERROR_INVALID_PC",
        718,
        "a kernel's program counter left its address space",
        APPLICATION_BUG,
    ),
    sticky(
        "CUDA_ERROR_LAUNCH_FAILED",
        719,
        "a kernel failed while it ran",
        APPLICATION_BUG,
    ),
    sticky(
        "CUDA_ERROR_TENSOR_MEMORY_LEAK",
        721,
        "a kernel ended without freeing its tensor memory",
        APPLICATION_BUG,
    ),
    sticky(
        "CUDA_ERROR_MPS_CLIENT_TERMINATED",
        810,
        "the MPS server ended this client",
        "look into the MPS server's log",
    ),
];

/// A code whose name stands in `text` as a word of its own; of several a sticky one, since then nothing may be retried.
///
/// The enum names alone count: «out of memory» in a sentence, or a file that is called after a code, is no exhaustion.
pub(super) fn find(text: &str) -> Option<&'static Code> {
    let mut named = CODES.iter().filter(|code| contains_word(text, code.name));
    let first = named.next()?;
    let is_sticky = |code: &&Code| matches!(code.meaning, Meaning::Sticky { .. });
    Some(first)
        .filter(is_sticky)
        .or_else(|| named.find(is_sticky))
        .or(Some(first))
}

fn contains_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(start, _)| {
        let before = text[..start].chars().next_back();
        let mut after = text[start + word.len()..].chars();
        let (next, second) = (after.next(), after.next());
        !before.is_some_and(joins) && !next.is_some_and(|c| extends(c, second))
    })
}

/// Whether `c` in front of a name makes it a part of something longer: an identifier or a path.
fn joins(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '/' | '\\' | '.' | '-')
}

/// The same behind a name; a full stop ends a sentence unless something follows it directly, as in a file name.
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
    fn names_are_words_of_their_own() {
        for text in [
            "CUDA_ERROR_OUT_OF_MEMORY",
            "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")",
            "it failed with CUDA_ERROR_OUT_OF_MEMORY.",
            "CUDA_ERROR_OUT_OF_MEMORY: while loading",
        ] {
            assert!(find(text).is_some(), "{text}");
        }
        for text in [
            "out of memory",
            "/var/log/CUDA_ERROR_OUT_OF_MEMORY",
            "CUDA_ERROR_OUT_OF_MEMORY.txt",
            "CUDA_ERROR_OUT_OF_MEMORY-2",
            "MY_CUDA_ERROR_OUT_OF_MEMORY_COUNT",
            "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        ] {
            assert!(find(text).is_none(), "{text}");
        }
    }

    #[test]
    fn every_code_is_found_and_a_sticky_one_first() {
        for code in CODES {
            assert_eq!(find(code.name).unwrap().name, code.name);
            if let Meaning::Sticky { .. } = code.meaning {
                let text = format!("CUDA_ERROR_OUT_OF_MEMORY, then {}", code.name);
                assert_eq!(find(&text).unwrap().name, code.name);
            }
        }
    }

    #[test]
    fn no_name_is_listed_twice() {
        let mut names: Vec<_> = CODES.iter().map(|code| code.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CODES.len());
    }
}
