//! Samples of the GPUs and of the host, taken by a thread of their own while a program works.

mod builder;
mod file_sink;
#[cfg(feature = "metrics")]
mod gauges;
mod gpu;
mod handle;
mod held_down;
mod host;
mod line;
mod output;
mod record;
mod sample;
mod source;
mod threshold;
mod worker;

pub use builder::MonitorBuilder;
pub use file_sink::{FileSink, FileSinkBuilder};
#[cfg(feature = "metrics")]
pub use gauges::MetricsSink;
pub use handle::{Monitor, Subscription};
pub use held_down::HeldDown;
pub(crate) use line::SampleLine;
pub use line::SampleRecord;
pub use output::Sink;
pub(crate) use record::Samples;
pub use sample::{Health, Sample};
pub use source::Source;
pub use threshold::{Crossing, Threshold};
