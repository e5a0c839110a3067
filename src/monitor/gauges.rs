use std::io;

use metrics::{Gauge, gauge};

use super::sample::{Health, Sample, VALUES};
use super::sink::Sink;
use super::source::Source;

/// Sets gauges of the crate [`metrics`], for the recorder that the program has installed: Prometheus, StatsD and others.
///
/// The gauges are named after the columns of a [`FileSink`](super::FileSink), as in `candle_headroom_used_bytes`, with the labels
/// `source` and `index`. A value that was never known has no gauge. A value that is no longer known, as for a lost GPU, is NaN.
/// `candle_headroom_up` is 1 if a source answers and 0 if it does not.
///
/// ```
/// use candle_headroom::Monitor;
/// use candle_headroom::monitor::MetricsSink;
///
/// let monitor = Monitor::builder().sink(MetricsSink::new()).start()?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Default)]
pub struct MetricsSink {
    /// For each source.
    gauges: Vec<Gauges>,
}

#[derive(Default)]
struct Gauges {
    up: Option<Gauge>,
    /// In the order of a sample's values. Registered when a value is first known, since recorders show unset gauges as 0.
    values: [Option<Gauge>; VALUES],
}

impl MetricsSink {
    /// A sink for the program's recorder, which must be installed before the first sample.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Sink for MetricsSink {
    fn write(&mut self, source: &Source, sample: &Sample) -> io::Result<()> {
        if self.gauges.len() <= sample.source {
            self.gauges.resize_with(sample.source + 1, Gauges::default);
        }
        let Some(gauges) = self.gauges.get_mut(sample.source) else {
            return Ok(());
        };
        let register = |name: &str| {
            let (name, index) = (format!("candle_headroom_{name}"), sample.source.to_string());
            gauge!(name, "source" => source.name.clone(), "index" => index)
        };
        let up = gauges.up.get_or_insert_with(|| register("up"));
        up.set(f64::from(u8::from(sample.health == Health::Good)));
        for (gauge, (name, value)) in gauges.values.iter_mut().zip(sample.values()) {
            match (gauge, value) {
                (gauge, Some(value)) => {
                    let gauge = gauge.get_or_insert_with(|| register(name));
                    gauge.set(value as f64);
                }
                (Some(gauge), None) => gauge.set(f64::NAN),
                (None, None) => {}
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for MetricsSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetricsSink").finish_non_exhaustive()
    }
}
