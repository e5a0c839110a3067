//! Statuses of CUDA and of NVML: what each means, and what helps.

use super::table;

/// A status code of a library, its cause and its remedy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) number: u32,
    /// As in the library's header.
    pub(crate) name: &'static str,
    pub(crate) cause: &'static str,
    pub(crate) remedy: &'static str,
}

/// A status of the CUDA driver.
pub(crate) fn cuda(number: u32) -> Option<&'static Status> {
    CUDA.iter().find(|status| status.number == number)
}

/// A return code of NVML.
pub(crate) fn nvml(number: u32) -> Option<&'static Status> {
    NVML.iter().find(|status| status.number == number)
}

/// Statuses of the CUDA driver that say something about the machine, the build or the device.
/// NVIDIA, CUDA Driver API, `CUresult`, docs.nvidia.com/cuda/cuda-driver-api; names and numbers as in CUDA 13; 2026-11.
pub(crate) const CUDA: &[Status] = &read::<45>(include_str!("cuda.tsv"));

/// NVML's return codes.
/// NVIDIA, NVML API Reference, `nvmlReturn_t`, and DCGM's testing/python3/dcgm_nvml.py; 2026-11.
const NVML: &[Status] = &read::<31>(include_str!("nvml.tsv"));

/// Reads rows of number, name, cause and remedy. It is called in constants only, so its panics are compile errors.
const fn read<const ROWS: usize>(text: &'static str) -> [Status; ROWS] {
    let rows = table::<ROWS, 4>(text);
    let mut statuses = [const { status(["0", "", "-", "-"]) }; ROWS];
    let mut index = 0;
    while index < ROWS {
        statuses[index] = status(rows[index]);
        assert!(index == 0 || statuses[index - 1].number < statuses[index].number);
        index += 1;
    }
    statuses
}

/// Reads a row, in constants only like [`read`].
const fn status([number, name, cause, remedy]: [&'static str; 4]) -> Status {
    let Ok(number) = u32::from_str_radix(number, 10) else {
        panic!("a status without a number");
    };
    assert!(is_text(cause) && is_text(remedy), "a status without a text");
    Status {
        number,
        name,
        cause,
        remedy,
    }
}

const fn is_text(text: &str) -> bool {
    !matches!(text.as_bytes(), [] | [.., b'.'])
}
