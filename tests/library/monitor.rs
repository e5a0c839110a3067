//! The monitor on the simulated NVML: every field failing in turn, GPUs that are lost and found, calls that hang, and bad input.
//!
//! Each test has GPUs of its own, since all tests share one library.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::nvml::{self, Simulator};
use candle_headroom::error::MonitorError;
use candle_headroom::incident::IncidentLog;
use candle_headroom::monitor::{
    Crossing, Health, HeldDown, MonitorBuilder, Sample, Sink, Source, Threshold,
};
use candle_headroom::{ByteSize, Error, Monitor};

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
fn a_field_that_fails_is_unknown_and_the_others_are_known() {
    const GPU: u32 = 1;
    let simulator = Simulator::load();
    // 3: not supported; 4: no permission; 13: missing in an older library; 999: unknown, which may pass.
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
            ("nvmlDeviceGetMemoryInfo_v2", "none: the older call is used"),
        ] {
            simulator.fail(GPU, function, status);
            let monitor = quick().start().unwrap();
            let sample = monitor.latest()[GPU as usize];
            assert_eq!(sample.health, Health::Good, "{function}");
            let shown = format!("{sample:?}");
            let missing = shown.matches("None").count();
            // One call can fill two fields. The process's own memory is unknown in any case.
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
        "no old values are shown"
    );
    assert_eq!(
        lost.to_string(),
        "lost, n/a of n/a used, this process n/a, busy n/a, n/a, n/a of n/a, n/a"
    );
    assert_eq!(
        monitor.latest()[3].health,
        Health::Good,
        "the others are sampled"
    );
    simulator.lose(GPU, false);
    until(&monitor, 2, |sample| {
        sample.health == Health::Good && sample.total.is_some()
    });
    // A driver that was reset has forgotten its sessions.
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
fn a_holder_of_samples_keeps_no_listener_alive() {
    let path = std::env::temp_dir().join(format!("monitor-kept-{}.jsonl", std::process::id()));
    let monitor = without_gpus().start().unwrap();
    let log = IncidentLog::builder(&path)
        .monitor(&monitor)
        .open()
        .unwrap();
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
    // Dropping the monitor does not wait for the call.
    let began = Instant::now();
    drop(monitor);
    let took = began.elapsed();
    simulator.delay(GPU, 0);
    assert!(took < Duration::from_millis(1000), "{took:?}");

    // The result of a call that returned late is the next sample, unless it took more than ten seconds.
    let monitor = quick().history(100_000).start().unwrap();
    until(&monitor, 3, |sample| sample.health == Health::Good);
    for (milliseconds, is_shown) in [(2500, true), (10_500, false)] {
        let since = monitor.latest()[3].at;
        let returned = |sample: &Sample| sample.at > since && sample.health == Health::Good;
        simulator.delay(GPU, milliseconds);
        until(&monitor, 3, |sample| sample.health == Health::Hanging);
        simulator.delay(GPU, 0);
        let sample = until(&monitor, 3, returned);
        assert!(sample.total.is_some(), "{sample:?}");
        let history = monitor.history(3).into_iter();
        let mut shown = history.filter(|sample| returned(sample));
        let least = Duration::from_millis(milliseconds - 500);
        assert_eq!(shown.any(|sample| sample.took > least), is_shown);
    }
    drop(monitor);

    // No call begins once the monitor ends: it ends while a listener runs, and the next GPU would hang by then.
    let monitor = quick().start().unwrap();
    until(&monitor, 3, |sample| sample.health == Health::Good);
    let (send, receive) = mpsc::channel();
    let hangs = AtomicBool::new(false);
    let _listening = monitor.subscribe(move |_, sample| {
        if sample.source == 2 && !hangs.swap(true, Ordering::Relaxed) {
            Simulator::load().delay(GPU, 8000);
            send.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    receive.recv().unwrap();
    let began = Instant::now();
    drop(monitor);
    let took = began.elapsed();
    simulator.delay(GPU, 0);
    assert!(took < Duration::from_secs(4), "{took:?}");
}

#[test]
fn a_sink_that_fails_is_tried_again_and_counted() {
    struct Every(Arc<AtomicUsize>);
    impl Sink for Every {
        fn write(&mut self, _: &Source, _: &Sample) -> io::Result<()> {
            match self.0.fetch_add(1, Ordering::Relaxed) % 3 {
                2 => Ok(()),
                _ => Err(io::ErrorKind::StorageFull.into()),
            }
        }
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let sink = Every(Arc::clone(&calls));
    let monitor = without_gpus().sink(sink).start().unwrap();
    while calls.load(Ordering::Relaxed) < 30 {
        std::thread::sleep(Duration::from_millis(2));
    }
    // Read in this order, each call but the last has been counted.
    let (failed, calls) = (
        monitor.failed_writes(),
        calls.load(Ordering::Relaxed) as u64,
    );
    assert!(
        (19..=calls - calls / 3).contains(&failed),
        "{failed} of {calls}"
    );
}

#[test]
fn a_sink_that_panics_is_dropped_and_what_it_lost_is_counted() {
    struct Third(Arc<AtomicUsize>);
    impl Sink for Third {
        fn write(&mut self, _: &Source, _: &Sample) -> io::Result<()> {
            let calls = self.0.fetch_add(1, Ordering::Relaxed);
            assert!(calls < 2, "this test's sink panics");
            Ok(())
        }
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let sink = Third(Arc::clone(&calls));
    let monitor = without_gpus().sink(sink).start().unwrap();
    let began = Instant::now();
    while monitor.failed_writes() < 8 {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "the monitor goes on"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(calls.load(Ordering::Relaxed), 3, "not called again");
    assert_eq!(Arc::strong_count(&calls), 1, "dropped");
}

#[test]
fn thresholds_ring_once_and_again_after_recovering() {
    const GPU: u32 = 4;
    let simulator = Simulator::load();
    let rings = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&rings);
    let note = move |crossing: &Crossing<'_>| {
        let source = crossing.sample.source;
        noted
            .lock()
            .unwrap()
            .push((source, crossing.to_string(), crossing.is_over));
    };
    let monitor = quick()
        .threshold(Threshold::Temperature(80), note.clone())
        .threshold(Threshold::HeldDown, note.clone())
        .threshold(Threshold::EccErrors(1), note.clone())
        .threshold(Threshold::MemoryShare(0.5), note)
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
        panic!("this test's listener panics");
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
        let found = |found: usize| found == samples;
        assert!(matches!(error, MonitorError::HistoryTooLong(samples) if found(samples)));
        assert!(error.to_string().contains(&samples.to_string()), "{error}");
    }
    for threshold in [
        Threshold::MemoryShare(0.),
        Threshold::MemoryShare(1.1),
        Threshold::MemoryShare(f64::NAN),
        Threshold::MemoryFree(ByteSize(0)),
        Threshold::Temperature(0),
        Threshold::EccErrors(0),
    ] {
        let error = refused(builder().threshold(threshold, |_| {}));
        assert!(matches!(error, MonitorError::Threshold { .. }), "{error}");
    }
}
