//! NVIDIA's tables.

use candle_headroom_environment::facts::{
    Status, Version, cuda_of_ptx, cuda_statuses, driver_of_cuda, floor_of_cudnn, floor_of_major,
    nvml, releases,
};

fn version(text: &str) -> Version {
    Version::parse(text).unwrap()
}

#[test]
fn versions_are_read_and_ordered_by_numbers() {
    assert_eq!(version("535.54.03").to_string(), "535.54.03");
    assert_eq!(version("2.28.3").plain(), "2.28.3");
    assert_eq!(version("12\n").plain(), "12.0.0");
    assert!(version("535.104.05") > version("535.54.03"));
    for bad in ["", "a.b", "535.", "-1", "99999999999999999999"] {
        assert_eq!(Version::parse(bad), None, "{bad}");
    }
    assert_eq!(Version::of_cuda(12040), Some(version("12.4")));
    assert_eq!(Version::of_cuda(0).or(Version::of_cuda(-3)), None);
    assert_eq!(version("12.4.1").release().to_string(), "12.4");
}

#[test]
fn releases_are_ordered_and_found() {
    let releases: Vec<_> = releases().collect();
    assert_eq!(releases.len(), 22);
    let is_next = |one: &[_; 3], next: &[_; 3]| one[0] < next[0] && one[1] <= next[1];
    assert!(releases.is_sorted_by(is_next));
    let drivers: Vec<_> = releases.iter().filter_map(|[.., driver]| *driver).collect();
    assert!(drivers.is_sorted() && drivers.len() + 1 == releases.len());
    for [cuda, ptx, driver] in releases {
        let (cuda, ptx) = (cuda.unwrap(), ptx.unwrap());
        assert!(cuda_of_ptx(ptx).is_some_and(|first| first <= cuda));
        assert_eq!(driver_of_cuda(cuda), driver);
        let floor = floor_of_major(cuda.major()).unwrap();
        assert!(driver.is_none_or(|driver| driver.major() >= floor.major()));
    }
    assert_eq!(cuda_of_ptx(version("8.7")), Some(version("12.8")));
    assert_eq!(cuda_of_ptx(version("99.0")), None);
    assert_eq!(driver_of_cuda(version("12.2")), Some(version("535.54.03")));
    assert_eq!(driver_of_cuda(version("1.0")), None);
    assert_eq!(floor_of_major(10), None);
    assert_eq!(floor_of_cudnn(9, 12), floor_of_major(12));
}

#[test]
fn every_status_has_texts() {
    let cuda: Vec<_> = cuda_statuses().collect();
    let nvml: Vec<_> = (0..=1000).filter_map(nvml).collect();
    assert_eq!((cuda.len(), nvml.len()), (45, 31));
    assert!(cuda.is_sorted_by(|one, next| one.number < next.number));
    let is_text = |text: &str| !text.is_empty() && !text.ends_with('.');
    let has_texts = |status: &Status| is_text(status.cause) && is_text(status.remedy);
    assert!(cuda.iter().chain(&nvml).all(has_texts));
}
