//! Samples as gauges of the crate `metrics`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::nvml;
use candle_headroom::Monitor;
use candle_headroom::monitor::MetricsSink;
use metrics::{
    Counter, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

type Values = Arc<Mutex<HashMap<String, f64>>>;

/// Keeps each gauge's last value by its name and source.
#[derive(Default, Clone)]
struct Kept(Values);

struct Slot(String, Values);

impl GaugeFn for Slot {
    fn increment(&self, _: f64) {}
    fn decrement(&self, _: f64) {}
    fn set(&self, value: f64) {
        self.1.lock().unwrap().insert(self.0.clone(), value);
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let labels: Vec<_> = key.labels().map(|label| label.value().to_owned()).collect();
        let name = format!("{} of {}", key.name(), labels.join(" "));
        Gauge::from_arc(Arc::new(Slot(name, Arc::clone(&self.0))))
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// The process has one recorder.
fn kept() -> &'static Kept {
    static KEPT: OnceLock<Kept> = OnceLock::new();
    KEPT.get_or_init(|| {
        let kept = Kept::default();
        metrics::set_global_recorder(kept.clone()).unwrap();
        kept
    })
}

#[test]
fn known_numbers_are_gauges_and_unknown_ones_are_not() {
    let kept = kept();
    // SAFETY: there is no such file.
    let monitor = unsafe { Monitor::builder().library("/no/library") }
        .interval(Duration::from_millis(5))
        .sink(MetricsSink::new());
    let monitor = monitor.start().unwrap();
    let host = monitor.latest()[0];
    drop(monitor);
    let kept = kept.0.lock().unwrap();
    assert_eq!(
        kept.get("candle_headroom_total_bytes of host 0"),
        Some(&(host.total.unwrap() as f64))
    );
    assert!(kept["candle_headroom_used_bytes of host 0"] > 0.);
    assert_eq!(kept["candle_headroom_up of host 0"], 1.);
    assert!(!kept.contains_key("candle_headroom_temperature_celsius of host 0"));
}

#[test]
fn a_lost_gpu_is_down_and_shows_no_old_values() {
    const GPU: u32 = 6;
    let kept = kept();
    let simulator = nvml::Simulator::load();
    // SAFETY: the simulated NVML.
    let monitor = unsafe { Monitor::builder().library(nvml::library()) }
        .interval(Duration::from_millis(5))
        .sink(MetricsSink::new())
        .start()
        .unwrap();
    let of = |name: &str| format!("candle_headroom_{name} of {} 6", monitor.sources()[6].name);
    let until = |up: f64| {
        let began = Instant::now();
        while kept.0.lock().unwrap()[&of("up")] != up {
            assert!(began.elapsed() < Duration::from_secs(20), "not {up}");
            std::thread::sleep(Duration::from_millis(20));
        }
        // The others are set after it.
        std::thread::sleep(Duration::from_millis(100));
        kept.0.lock().unwrap()[&of("used_bytes")]
    };
    assert!(until(1.) >= 0.);
    simulator.lose(GPU, true);
    assert!(until(0.).is_nan());
    simulator.lose(GPU, false);
    assert!(until(1.) >= 0.);
}
