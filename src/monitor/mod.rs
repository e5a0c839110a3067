//! Samples of the GPUs and of the host, taken by a thread of their own while a program works.

mod file_sink;
#[cfg(feature = "metrics")]
mod gauges;
mod gpu;
mod handle;
mod host;
mod output;
mod sample;
mod samples;
mod source;
mod threshold;
mod worker;

pub use file_sink::{FileSink, FileSinkBuilder, SampleRecord};
#[cfg(feature = "metrics")]
pub use gauges::MetricsSink;
pub use handle::{Monitor, MonitorBuilder, Subscription};
pub use output::Sink;
pub(crate) use sample::unix_milliseconds;
pub use sample::{Health, HeldDown, Sample};
pub(crate) use samples::Samples;
pub use source::Source;
pub use threshold::{Crossing, Threshold};
