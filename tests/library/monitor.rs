//! The monitor on the simulated NVML: every field failing in turn, GPUs that go and come, calls that hang, and bad input.
//!
//! Each test has devices of its own, since all tests share one library.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::nvml::{self, Simulator};
use candle_headroom::error::MonitorError;
use candle_headroom::incident::IncidentLog;
use candle_headroom::monitor::{Health, HeldDown, MonitorBuilder, Sample, Threshold};
use candle_headroom::{ByteSize, Error, Monitor};

const GIB: u64 = 1 << 30;

fn quick() -> MonitorBuilder {
    // SAFETY: the simulated NVML is this project's own.
    let builder = unsafe { Monitor::builder().library(nvml::library()) };
    builder.interval(Duration::from_millis(5))
}

/// Waits for a sample of a GPU for which `is_it` holds.
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
fn every_field_of_every_gpu_and_the_host() {
    let monitor = quick().start().unwrap();
    assert_eq!(monitor.without_gpus(), None);
    let sources = monitor.sources();
    assert_eq!(sources.len(), 8 + 1);
    let gpu = &sources[0];
    assert!(gpu.uuid.as_ref().unwrap().starts_with("GPU-"), "{gpu:?}");
    let sample = monitor.latest()[0];
    assert_eq!(sample.health, Health::Good);
    assert_eq!(sample.total, Some(2 * GIB));
    assert_eq!(
        (sample.utilisation, sample.memory_utilisation),
        (Some(50), Some(25))
    );
    assert_eq!((sample.temperature, sample.clock), (Some(45), Some(1980)));
    assert_eq!(
        (sample.power, sample.power_limit),
        (Some(350_000), Some(700_000))
    );
    assert_eq!(
        (sample.pcie_received, sample.ecc_errors),
        (Some(0), Some(0))
    );
    assert_eq!(sample.held_down, Some(HeldDown::from_bits(0)));
    assert!(sample.took > Duration::ZERO);
    let host = monitor.latest()[8];
    assert!(
        host.total > host.used && host.process > Some(1 << 20),
        "{host}"
    );
    assert_eq!((host.temperature, host.power), (None, None));
}

#[test]
fn a_field_that_fails_is_not_known_and_all_others_are() {
    const GPU: u32 = 1;
    let simulator = Simulator::load();
    // 3: not supported; 4: no permission; 13: an older library has no such function; 999: unknown, which may pass.
    for status in [3, 4, 13, 999] {
        for (function, field) in [
            ("nvmlDeviceGetUtilizationRates", "utilisation_percent"),
            ("nvmlDeviceGetTemperature", "temperature_celsius"),
            ("nvmlDeviceGetPowerUsage", "power_milliwatts"),
            ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_milliwatts"),
            ("nvmlDeviceGetClockInfo", "clock_mhz"),
            ("nvmlDeviceGetCurrentClocksEventReasons", "held_down_bits"),
            ("nvmlDeviceGetTotalEccErrors", "ecc_errors"),
            ("nvmlDeviceGetPcieThroughput", "pcie_sent_bytes_per_second"),
            ("nvmlDeviceGetComputeRunningProcesses_v3", "others_bytes"),
            ("nvmlDeviceGetMemoryInfo_v2", "none: the older call serves"),
        ] {
            simulator.fail(GPU, function, status);
            let monitor = quick().start().unwrap();
            let sample = monitor.latest()[GPU as usize];
            assert_eq!(sample.health, Health::Good, "{function}");
            let shown = format!("{sample:?}");
            let missing = shown.matches("None").count();
            // One call may stand for two fields; the process's own memory is not known without a context anyway.
            let expected = match function {
                "nvmlDeviceGetMemoryInfo_v2" => 1,
                "nvmlDeviceGetUtilizationRates" | "nvmlDeviceGetClockInfo" => 3,
                "nvmlDeviceGetPcieThroughput" => 3,
                _ => 2,
            };
            assert_eq!(missing, expected, "{field} after {function}: {shown}");
            simulator.fail(GPU, function, 0);
        }
    }
    simulator.fail(GPU, "nvmlDeviceGetMemoryInfo_v2", 3);
    simulator.fail(GPU, "nvmlDeviceGetMemoryInfo", 3);
    let monitor = quick().start().unwrap();
    let sample = monitor.latest()[GPU as usize];
    assert_eq!((sample.total, sample.used, sample.free), (None, None, None));
    assert!(
        sample.to_string().starts_with("n/a of n/a used"),
        "{sample}"
    );
    simulator.fail(GPU, "nvmlDeviceGetMemoryInfo_v2", 0);
    simulator.fail(GPU, "nvmlDeviceGetMemoryInfo", 0);
}

#[test]
fn a_gpu_that_is_unplugged_is_lost_and_found_again() {
    const GPU: u32 = 2;
    let simulator = Simulator::load();
    let monitor = quick().start().unwrap();
    until(&monitor, 2, |sample| sample.health == Health::Good);
    simulator.lose(GPU, true);
    let lost = until(&monitor, 2, |sample| sample.health == Health::Lost);
    assert_eq!(
        (lost.total, lost.temperature),
        (None, None),
        "nothing old is shown"
    );
    assert_eq!(monitor.latest()[3].health, Health::Good, "the others go on");
    simulator.lose(GPU, false);
    until(&monitor, 2, |sample| {
        sample.health == Health::Good && sample.total.is_some()
    });
    // A driver that was reset forgets who had begun with it.
    simulator.fail(GPU, "nvmlDeviceGetMemoryInfo_v2", 16);
    until(&monitor, 2, |sample| sample.health == Health::NeedsReset);
    simulator.fail(GPU, "nvmlDeviceGetMemoryInfo_v2", 1);
    until(&monitor, 2, |sample| sample.health == Health::Lost);
    simulator.fail(GPU, "nvmlDeviceGetMemoryInfo_v2", 0);
    until(&monitor, 2, |sample| sample.health == Health::Good);
}

#[test]
fn a_gpu_whose_every_call_fails_is_lost_and_found_again() {
    const GPU: u32 = 5;
    let simulator = Simulator::load();
    let monitor = quick().start().unwrap();
    let all = |status: u32| {
        for function in [
            "nvmlDeviceGetUtilizationRates",
            "nvmlDeviceGetTemperature",
            "nvmlDeviceGetPowerUsage",
            "nvmlDeviceGetEnforcedPowerLimit",
            "nvmlDeviceGetClockInfo",
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetTotalEccErrors",
            "nvmlDeviceGetPcieThroughput",
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetMemoryInfo",
        ] {
            simulator.fail(GPU, function, status);
        }
    };
    all(999);
    until(&monitor, 5, |sample| sample.health == Health::Lost);
    all(0);
    until(&monitor, 5, |sample| {
        sample.health == Health::Good && sample.total.is_some()
    });
}

#[test]
fn what_keeps_the_samples_keeps_no_listener() {
    let path = std::env::temp_dir().join(format!("monitor-kept-{}.jsonl", std::process::id()));
    // SAFETY: there is no such library.
    let monitor = unsafe { Monitor::builder().library("/no/such/library.so") };
    let monitor = monitor.start().unwrap();
    let log = IncidentLog::open(&path).unwrap().monitor(&monitor);
    let kept = Arc::new(());
    let in_listener = Arc::clone(&kept);
    let subscription = monitor.subscribe(move |_, _| drop(Arc::clone(&in_listener)));
    drop(monitor);
    assert_eq!(Arc::strong_count(&kept), 1);
    drop((log, subscription));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_call_that_hangs_holds_nobody_up() {
    const GPU: u32 = 3;
    let simulator = Simulator::load();
    let monitor = quick().start().unwrap();
    simulator.delay(GPU, 4000);
    let hanging = until(&monitor, 3, |sample| sample.health == Health::Hanging);
    assert!(hanging.took >= Duration::from_millis(100), "{hanging:?}");
    let before = monitor.latest()[8].at;
    until(&monitor, 8, |sample| {
        sample.at > before + Duration::from_millis(50)
    });
    // It cannot be waited for: whoever ends the monitor goes on at once.
    let began = Instant::now();
    drop(monitor);
    assert!(
        began.elapsed() < Duration::from_millis(1000),
        "{:?}",
        began.elapsed()
    );
    simulator.delay(GPU, 0);
}

#[test]
fn thresholds_ring_once_and_again_after_they_fell_back() {
    const GPU: u32 = 4;
    let simulator = Simulator::load();
    let rings = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&rings);
    let note = move |crossing: &candle_headroom::monitor::Crossing<'_>| {
        let source = crossing.sample.source;
        noted
            .lock()
            .unwrap()
            .push((source, crossing.to_string(), crossing.is_over));
    };
    let monitor = quick()
        .threshold(Threshold::temperature(80), note.clone())
        .threshold(Threshold::held_down(), note.clone())
        .threshold(Threshold::ecc_errors(1), note.clone())
        .threshold(Threshold::memory_share(0.5), note)
        .start()
        .unwrap();
    let heat = |celsius: u64| {
        simulator.set(GPU, "nvmlDeviceGetTemperature", celsius);
        until(&monitor, 4, |sample| sample.temperature == Some(celsius));
    };
    for celsius in [79, 80, 79, 81, 76, 75, 79, 80] {
        heat(celsius);
    }
    simulator.set(GPU, "nvmlDeviceGetCurrentClocksEventReasons", 0x40);
    until(&monitor, 4, |sample| {
        sample.held_down == Some(HeldDown::from_bits(0x40))
    });
    simulator.set(GPU, "nvmlDeviceGetTotalEccErrors", 3);
    until(&monitor, 4, |sample| sample.ecc_errors == Some(3));
    simulator.neighbour(GPU, GIB + GIB / 2);
    until(&monitor, 4, |sample| sample.others == Some(GIB + GIB / 2));
    drop(monitor);
    let rings = rings.lock().unwrap();
    let of_gpu: Vec<_> = rings.iter().filter(|(source, ..)| *source == 4).collect();
    let temperature: Vec<bool> = of_gpu
        .iter()
        .filter(|ring| ring.1.contains("80 °C"))
        .map(|ring| ring.2)
        .collect();
    assert_eq!(temperature, [true, false, true]);
    for words in [
        "clocks held down",
        "uncorrected memory errors",
        "50 % of the memory used",
    ] {
        assert_eq!(
            of_gpu.iter().filter(|ring| ring.1.contains(words)).count(),
            1,
            "{of_gpu:?}"
        );
    }
}

#[test]
fn history_is_a_ring_and_listeners_come_and_go() {
    let monitor = quick().history(5).start().unwrap();
    let (send, receive) = mpsc::channel();
    let subscription = monitor.subscribe(move |source, sample| {
        send.send((source.name.clone(), sample.at)).unwrap();
    });
    let panicked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&panicked);
    let _panics = monitor.subscribe(move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        panic!("a listener of the test's own");
    });
    for _ in 0..9 * 20 {
        receive.recv_timeout(Duration::from_secs(20)).unwrap();
    }
    drop(subscription);
    let ended = receive.iter().count(); // the sender goes with the listener
    assert!(ended < 9 * 20);
    assert_eq!(panicked.load(Ordering::SeqCst), 1, "not called again");
    let history = monitor.history(8);
    assert_eq!(history.len(), 5);
    assert!(history.is_sorted_by(|a, b| a.at < b.at));
    assert!(monitor.history(99).is_empty());
}

#[test]
fn without_nvml_the_host_is_watched_and_the_reason_is_told() {
    // SAFETY: there is no such library.
    let monitor = unsafe { Monitor::builder().library("/no/such/library.so") };
    let monitor = monitor.start().unwrap();
    assert_eq!(monitor.sources().len(), 1);
    assert!(
        monitor
            .without_gpus()
            .is_some_and(|reason| reason.contains("/no/such/library.so"))
    );
}

#[test]
fn bad_input_is_told_by_type() {
    let refused = |builder: MonitorBuilder| match builder.start() {
        Err(Error::Monitor(error)) => *error,
        other => panic!("{other:?}"),
    };
    let builder = Monitor::builder;
    assert_eq!(
        refused(builder().interval(Duration::ZERO)),
        MonitorError::Interval
    );
    assert_eq!(refused(builder().history(0)), MonitorError::History);
    for samples in [usize::MAX, 1 << 42] {
        let error = refused(builder().history(samples));
        assert_eq!(error, MonitorError::HistoryTooLong { samples });
        assert!(error.to_string().contains(&samples.to_string()), "{error}");
    }
    for threshold in [
        Threshold::memory_share(0.),
        Threshold::memory_share(1.1),
        Threshold::memory_share(f64::NAN),
        Threshold::memory_free(ByteSize(0)),
        Threshold::temperature(0),
        Threshold::ecc_errors(0),
    ] {
        let error = refused(builder().threshold(threshold, |_| {}));
        assert!(matches!(error, MonitorError::Threshold { .. }), "{error}");
    }
}
