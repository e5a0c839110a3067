//! The monitor on the simulated NVML, and on the host alone.
//!
//! Each test has GPUs of its own, since all tests share one library.

mod gpus;
mod outputs;
mod thresholds;

use std::time::{Duration, Instant};

use crate::nvml::{self, Simulator};
use candle_headroom::monitor::{Health, MonitorBuilder, Sample, Threshold};
use candle_headroom::{ByteSize, Monitor};

const GIB: u64 = 1 << 30;

fn quick() -> MonitorBuilder {
    // SAFETY: the simulated NVML.
    let builder = unsafe { Monitor::builder().library(nvml::library()) };
    builder.interval(Duration::from_millis(5))
}

/// A monitor of the host alone.
fn without_gpus() -> MonitorBuilder {
    // SAFETY: there is no such file.
    let builder = unsafe { Monitor::builder().library("/no/such/library.so") };
    builder.interval(Duration::from_millis(2))
}

/// Waits for a sample of a source for which `is_it` holds.
fn until(monitor: &Monitor, source: usize, is_it: impl Fn(&Sample) -> bool) -> Sample {
    let began = Instant::now();
    loop {
        let sample = monitor.latest()[source];
        if is_it(&sample) {
            return sample;
        }
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "not seen; last: {sample:?}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn without_nvml_the_host_is_sampled_and_the_reason_is_given() {
    let monitor = without_gpus().start().unwrap();
    assert_eq!(monitor.sources().len(), 1);
    assert!(
        monitor
            .without_gpus()
            .is_some_and(|reason| reason.contains("/no/such/library.so"))
    );
}

#[test]
fn bad_input_is_a_typed_error() {
    let refused = |builder: MonitorBuilder| match builder.start() {
        Err(error) if error.is_monitor() => error.to_string(),
        other => panic!("{other:?}"),
    };
    let builder = Monitor::builder;
    assert_eq!(
        refused(builder().interval(Duration::ZERO)),
        "`interval` must be above 0, got 0"
    );
    assert_eq!(
        refused(builder().history(0)),
        "`history` must be at least 1 sample, got 0"
    );
    for samples in [usize::MAX, 1 << 42] {
        let error = refused(builder().history(samples));
        assert!(
            error.contains(&format!("`history` of {samples} samples")),
            "{error}"
        );
    }
    for threshold in [
        Threshold::MemoryShare(0.),
        Threshold::MemoryShare(1.1),
        Threshold::MemoryShare(f64::NAN),
        Threshold::MemoryFree(ByteSize(0)),
        Threshold::Temperature(0),
    ] {
        let error = refused(builder().threshold(threshold, |_| {}));
        assert!(error.starts_with("`threshold` is out of range"), "{error}");
    }
}

/// It is loaded in another process first: here it would hold the loader's lock for good.
#[cfg(target_os = "linux")]
#[test]
fn a_library_that_hangs_while_it_is_loaded_is_not_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (
        folder.path().join("hangs.rs"),
        folder.path().join("hangs.so"),
    );
    let text = r#"
        extern "C" fn at_start() { loop { std::thread::park(); } }
        #[used]
        #[unsafe(link_section = ".init_array")]
        static AT_START: extern "C" fn() = at_start;
    "#;
    std::fs::write(&source, text).unwrap();
    let mut rustc = std::process::Command::new("rustc");
    rustc.args(["--edition=2024", "--crate-type=cdylib", "-o"]);
    assert!(rustc.arg(&library).arg(&source).status().unwrap().success());
    // SAFETY: the library's initializer would not return; it has no functions that could be called.
    let monitor = unsafe { Monitor::builder().library(&library) };
    let monitor = monitor.start().unwrap();
    let reason = monitor.without_gpus().unwrap_or_default();
    assert!(reason.contains("does not return"), "{reason}");
}
