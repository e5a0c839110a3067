//! Statuses of CUDA and of NVML: what each means, and what helps.

use super::table;

/// A status code of a library, its cause and its remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    pub number: u32,
    /// As in the library's header.
    pub name: &'static str,
    pub cause: &'static str,
    pub remedy: &'static str,
}

/// Statuses of the CUDA driver that say something about the machine, the build or the device.
/// NVIDIA, CUDA Driver API, `CUresult`, docs.nvidia.com/cuda/cuda-driver-api; names and numbers as in CUDA 13; 2026-11.
static CUDA: [[&str; 4]; 45] = table(include_str!("cuda.tsv"));

/// NVML's return codes.
/// NVIDIA, NVML API Reference, `nvmlReturn_t`, and DCGM's testing/python3/dcgm_nvml.py; 2026-11.
static NVML: [[&str; 4]; 31] = table(include_str!("nvml.tsv"));

/// The statuses of the CUDA driver, ordered by number.
pub fn cuda_statuses() -> impl Iterator<Item = Status> {
    read(&CUDA)
}

/// A status of the CUDA driver.
pub fn cuda(number: u32) -> Option<Status> {
    read(&CUDA).find(|status| status.number == number)
}

/// A return code of NVML.
pub fn nvml(number: u32) -> Option<Status> {
    read(&NVML).find(|status| status.number == number)
}

fn read(rows: &'static [[&str; 4]]) -> impl Iterator<Item = Status> {
    rows.iter().filter_map(|[number, name, cause, remedy]| {
        let number = number.parse().ok()?;
        Some(Status {
            number,
            name,
            cause,
            remedy,
        })
    })
}
