use std::io;

use metrics::{Gauge, gauge};

use super::{Sample, Sink, Source};
use crate::monitor::Health;
use crate::monitor::sample::VALUES;

/// Samples as gauges of the crate [`metrics`], for whichever recorder the program has installed: Prometheus, StatsD and others.
///
/// They are called `candle_headroom_used_bytes` and so on, as the columns of [`CsvSink`](super::CsvSink), with the labels `source`
/// and `index`. A value that was never known has no gauge; one that is not known any more is NaN, as all are of a GPU that was lost.
/// `candle_headroom_up` is 1 where a source answers, and 0 where it does not.
///
/// ```
/// use candle_headroom::{MetricsSink, Monitor};
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
    /// In the order of a sample's values; registered when a value is first known, since recorders show what was not set as 0.
    values: [Option<Gauge>; VALUES],
}

impl MetricsSink {
    /// A sink to the program's recorder, which must be installed before.
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
