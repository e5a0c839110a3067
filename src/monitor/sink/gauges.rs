use std::io;

use metrics::{Gauge, gauge};

use super::{Sample, Sink, Source};

/// Samples as gauges of the crate [`metrics`], for whichever recorder the program has installed: Prometheus, StatsD and others.
///
/// They are called `candle_headroom_used_bytes` and so on, as the columns of [`CsvSink`](super::CsvSink), with the labels `source`
/// and `index`. A value that is not known leaves its gauge as it was.
///
/// ```
/// use candle_headroom::{MetricsSink, Monitor};
///
/// let monitor = Monitor::builder().sink(MetricsSink::new()).start()?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Default)]
pub struct MetricsSink {
    /// For each source, in the order of a sample's values; registered when a source is first seen.
    gauges: Vec<Vec<Gauge>>,
}

impl MetricsSink {
    /// A sink to the program's recorder, which must be installed before.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Sink for MetricsSink {
    fn write(&mut self, source: &Source, sample: &Sample) -> io::Result<()> {
        while self.gauges.len() <= sample.source {
            let index = self.gauges.len().to_string();
            let register = |(name, _): (&str, _)| {
                let name = format!("candle_headroom_{name}");
                gauge!(name, "source" => source.name.clone(), "index" => index.clone())
            };
            self.gauges
                .push(sample.values().into_iter().map(register).collect());
        }
        let gauges = self.gauges.get(sample.source).into_iter().flatten();
        for (gauge, (_, value)) in gauges.zip(sample.values()) {
            if let Some(value) = value {
                gauge.set(value as f64);
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
