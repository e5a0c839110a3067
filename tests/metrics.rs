//! What a monitor's sink tells the crate `metrics`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use candle_headroom::{MetricsSink, Monitor};
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

#[test]
fn known_numbers_are_gauges_and_unknown_ones_are_not() {
    let kept = Kept::default();
    metrics::set_global_recorder(kept.clone()).unwrap();
    let monitor = Monitor::builder()
        .interval(Duration::from_millis(5))
        .library("/no/library")
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
    assert!(!kept.contains_key("candle_headroom_temperature_celsius of host 0"));
}
