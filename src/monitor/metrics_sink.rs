use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;

use metrics::{Gauge, Label, gauge};

use super::sample::{Health, NAMES, Sample};
use super::sinks::Sink;
use super::source::Source;

/// Sets gauges of the crate [`metrics`], for the recorder that the program has installed: Prometheus, StatsD and others.
///
/// The gauges are named after the columns of a [`FileSink`](super::FileSink), as in `candle_headroom_used_bytes`, with the labels
/// `source` and `index`, and `rank` in a [group](super::MonitorBuilder::group). A value that was never known has no gauge. A value that is no longer known, as for a lost GPU, is NaN.
/// `candle_headroom_up` is 1 if a source answers and 0 if it does not.
///
/// ```
/// use candle_headroom::Monitor;
/// use candle_headroom::monitor::MetricsSink;
///
/// let monitor = Monitor::builder().sink(MetricsSink::new()).start()?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct MetricsSink {
    /// By the index of the source and the name. Registered when a value is first known, since recorders show unset gauges as 0.
    gauges: BTreeMap<(usize, &'static str), Gauge>,
}

impl MetricsSink {
    /// A sink for the program's recorder, which must be installed before the first sample.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Sink for MetricsSink {
    fn write(&mut self, source: &Source, sample: &Sample) -> io::Result<()> {
        let up = ("up", Some(u64::from(sample.health == Health::Good)));
        let values = NAMES.into_iter().zip(sample.values());
        for (name, value) in std::iter::once(up).chain(values) {
            let gauge = match self.gauges.entry((sample.source, name)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(_) if value.is_none() => continue,
                Entry::Vacant(place) => {
                    let full_name = format!("candle_headroom_{name}");
                    let mut labels = vec![
                        Label::new("source", source.name.clone()),
                        Label::new("index", sample.source.to_string()),
                    ];
                    let rank = source.rank.map(|rank| rank.to_string());
                    labels.extend(rank.map(|rank| Label::new("rank", rank)));
                    place.insert(gauge!(full_name, labels))
                }
            };
            gauge.set(value.map_or(f64::NAN, |value| value as f64));
        }
        Ok(())
    }
}
