use super::{Version, table};

/// Each CUDA toolkit, the PTX version that its compiler writes, and the oldest Linux driver packaged with it, which loads that PTX.
/// NVIDIA, CUDA Toolkit Release Notes, table 3 (edition of 13.2), docs.nvidia.com/cuda/cuda-toolkit-release-notes, and cuda-python,
/// cuda/bindings/utils/_ptx_utils.py; PTX 9.2 from the release notes of 13.2; 2026-11.
const RELEASES: [[&str; 3]; 22] = table(include_str!("releases.tsv"));

/// CUDA's release, the PTX version of its compiler, and its oldest driver.
pub fn releases() -> impl Iterator<Item = [Option<Version>; 3]> {
    RELEASES.iter().map(|release| release.map(Version::parse))
}

/// The first CUDA release whose driver loads PTX of this version.
pub fn cuda_of_ptx(wanted: Version) -> Option<Version> {
    releases().find_map(|[cuda, ptx, _]| cuda.filter(|_| ptx == Some(wanted)))
}

/// The oldest driver packaged with a CUDA release. Older drivers do not load PTX made by that release's compiler.
pub fn driver_of_cuda(wanted: Version) -> Option<Version> {
    releases().find_map(|[cuda, _, driver]| driver.filter(|_| cuda == Some(wanted)))
}

/// The oldest driver on which libraries of this major CUDA version start (minor-version compatibility). This does not cover PTX.
/// NVIDIA, CUDA Compatibility, docs.nvidia.com/deploy/cuda-compatibility; 2026-11.
pub fn floor_of_major(major: u32) -> Option<Version> {
    match major {
        11 => Some(Version([450, 80, 2])),
        12 => Some(Version([525, 60, 13])),
        13 => Some(Version([580, 0, 0])),
        _ => None,
    }
}

/// The oldest driver for this major version of cuDNN, built for this major version of CUDA: that CUDA's own.
/// NVIDIA, cuDNN support matrix (8.9 and 9.10), docs.nvidia.com/deeplearning/cudnn; 2026-11.
pub fn floor_of_cudnn(cudnn: u32, cuda: u32) -> Option<Version> {
    floor_of_major(cuda).filter(|_| matches!((cudnn, cuda), (9, 12) | (8, 11 | 12)))
}

/// Whether this driver's newest calls for a GPU's processes write longer elements than their header says: results and sizes are wrong.
/// XuehaiPan/nvitop, pull request 79 (elements of 32 bytes instead of 24, in R535). Sources differ on the end, 535.86 or 535.98; the
/// later one is safe. Not checked on these drivers. 2026-11.
pub fn reports_processes_wrongly(driver: Version) -> bool {
    (Version([535, 43, 0])..Version([535, 98, 0])).contains(&driver)
}
