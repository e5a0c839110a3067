use super::Version;

/// Each release of the CUDA toolkit, the PTX version that its compiler writes, and the oldest Linux driver packaged with the release, where
/// one is listed. A driver loads a release's PTX from that version on.
///
/// NVIDIA, CUDA Toolkit Release Notes, table 3 (edition of 13.2), docs.nvidia.com/cuda/cuda-toolkit-release-notes, and cuda-python,
/// cuda/bindings/utils/_ptx_utils.py; PTX 9.2 from the release notes of 13.2; 2026-11.
const RELEASES: [[&str; 3]; 22] = [
    ["11.0", "7.0", "450.51.06"],
    ["11.1", "7.1", "455.23"],
    ["11.2", "7.2", "460.27.03"],
    ["11.3", "7.3", "465.19.01"],
    ["11.4", "7.4", "470.42.01"],
    ["11.5", "7.5", "495.29.05"],
    ["11.6", "7.6", "510.39.01"],
    ["11.7", "7.7", "515.43.04"],
    ["11.8", "7.8", "520.61.05"],
    ["12.0", "8.0", "525.60.13"],
    ["12.1", "8.1", "530.30.02"],
    ["12.2", "8.2", "535.54.03"],
    ["12.3", "8.3", "545.23.06"],
    ["12.4", "8.4", "550.54.14"],
    ["12.5", "8.5", "555.42.02"],
    ["12.6", "8.5", "560.28.03"],
    ["12.7", "8.6", ""],
    ["12.8", "8.7", "570.26.00"],
    ["12.9", "8.8", "575.51.03"],
    ["13.0", "9.0", "580.65.06"],
    ["13.1", "9.1", "590.44.01"],
    ["13.2", "9.2", "595.45.04"],
];

fn releases() -> impl Iterator<Item = [Option<Version>; 3]> {
    RELEASES.iter().map(|release| release.map(Version::parse))
}

/// The first CUDA release whose driver loads PTX of this version.
pub(crate) fn cuda_of_ptx(wanted: Version) -> Option<Version> {
    releases().find_map(|[cuda, ptx, _]| cuda.filter(|_| ptx == Some(wanted)))
}

/// The oldest driver packaged with a CUDA release. Older drivers do not load PTX made by that release's compiler.
pub(crate) fn driver_of_cuda(wanted: Version) -> Option<Version> {
    releases().find_map(|[cuda, _, driver]| driver.filter(|_| cuda == Some(wanted)))
}

/// The oldest driver on which libraries of this major CUDA version start (minor-version compatibility). This does not cover PTX.
///
/// NVIDIA, CUDA Compatibility, docs.nvidia.com/deploy/cuda-compatibility; 2026-11.
pub(crate) fn floor_of_major(major: u32) -> Option<Version> {
    match major {
        11 => Some(Version::new([450, 80, 2])),
        12 => Some(Version::new([525, 60, 13])),
        13 => Some(Version::new([580, 0, 0])),
        _ => None,
    }
}

/// The oldest driver for this major version of cuDNN, built for this major version of CUDA: that CUDA's own.
///
/// NVIDIA, cuDNN support matrix (8.9 and 9.10), docs.nvidia.com/deeplearning/cudnn; 2026-11.
pub(crate) fn floor_of_cudnn(cudnn: u32, cuda: u32) -> Option<Version> {
    floor_of_major(cuda).filter(|_| matches!((cudnn, cuda), (9, 12) | (8, 11 | 12)))
}

/// Whether this driver's newest calls for a GPU's processes write longer elements than their header says. Their results are wrong, and a
/// buffer sized by the header is too small.
///
/// XuehaiPan/nvitop, pull request 79 (elements of 32 bytes instead of 24, in R535). Sources differ on the end, 535.86 or 535.98; the
/// later one is safe. Not checked on these drivers. 2026-11.
pub(crate) fn reports_processes_wrongly(driver: Version) -> bool {
    (Version::new([535, 43, 0])..Version::new([535, 98, 0])).contains(&driver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_ordered_and_found() {
        let releases: Vec<_> = releases().collect();
        for pair in releases.windows(2) {
            assert!(pair[0][0] < pair[1][0] && pair[0][1] <= pair[1][1]);
        }
        let drivers: Vec<_> = releases.iter().filter_map(|[.., driver]| *driver).collect();
        assert!(drivers.is_sorted() && drivers.len() + 1 == RELEASES.len());
        for [cuda, ptx, driver] in releases {
            let (cuda, ptx) = (cuda.unwrap(), ptx.unwrap());
            assert!(cuda_of_ptx(ptx).is_some_and(|first| first <= cuda));
            assert_eq!(driver_of_cuda(cuda), driver);
            let floor = floor_of_major(cuda.major()).unwrap();
            assert!(driver.is_none_or(|driver| driver.major() >= floor.major()));
        }
        let version = |text| Version::parse(text).unwrap();
        assert_eq!(cuda_of_ptx(version("8.7")), Some(version("12.8")));
        assert_eq!(cuda_of_ptx(version("99.0")), None);
        assert_eq!(driver_of_cuda(version("12.2")), Some(version("535.54.03")));
        assert_eq!(driver_of_cuda(version("1.0")), None);
        assert_eq!(floor_of_major(10), None);
        assert_eq!(floor_of_cudnn(9, 12), floor_of_major(12));
    }
}
