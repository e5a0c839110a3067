//! GPUs: each field failing in turn, GPUs that are lost and found, and calls that hang.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use candle_headroom::monitor::{HeldDown, Source};

use super::*;

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
            // One call can fill two fields. The process's own memory, and the host's wait for data, are unknown in any case.
            let expected = match function {
                "nvmlDeviceGetMemoryInfo_v2" => 2,
                "nvmlDeviceGetUtilizationRates" | "nvmlDeviceGetClockInfo" => 4,
                "nvmlDeviceGetPcieThroughput" => 4,
                _ => 3,
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
    assert!(!sample.to_string().contains("used"), "{sample}");
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
    assert_eq!(lost.to_string(), "lost");
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
    assert!(took < Duration::from_secs(3), "{took:?}");

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

    // No call begins once the monitor ends: it ends while a sink runs, and the next GPU would hang by then.
    let (send, receive) = mpsc::channel();
    let hangs = Arc::new(AtomicBool::new(false));
    let next_hangs = Arc::clone(&hangs);
    let sink = move |_: &Source, sample: &Sample| {
        if sample.source == 2 && next_hangs.swap(false, Ordering::Relaxed) {
            Simulator::load().delay(GPU, 8000);
            send.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(300));
        }
        Ok(())
    };
    let monitor = quick().sink(sink).start().unwrap();
    until(&monitor, 3, |sample| sample.health == Health::Good);
    hangs.store(true, Ordering::Relaxed);
    receive.recv().unwrap();
    let began = Instant::now();
    drop(monitor);
    let took = began.elapsed();
    simulator.delay(GPU, 0);
    assert!(took < Duration::from_secs(4), "{took:?}");
}
