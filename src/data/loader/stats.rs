use std::fmt;
use std::time::Duration;

use bytesize::ByteSize;

/// What a loader has done so far; from [`Loader::stats`](super::Loader::stats). `Display` writes one line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoaderStats {
    /// Batches handed out.
    pub batches: u64,
    /// Samples in them, of this rank.
    pub samples: u64,
    /// Samples that were skipped because they could not be read.
    pub skipped: usize,
    /// How long the caller waited for them.
    pub waited: Duration,
    /// The time from the first batch's request to now.
    pub elapsed: Duration,
    /// Batches that are ready now.
    pub ready: usize,
    /// Their bytes.
    pub ready_bytes: u64,
}

impl LoaderStats {
    /// Returns the part of the time that the caller spent waiting for data, from 0 to 1.
    pub fn wait_share(&self) -> f64 {
        match self.elapsed.as_secs_f64() {
            0. => 0.,
            elapsed => (self.waited.as_secs_f64() / elapsed).min(1.),
        }
    }

    /// Returns whether training waits for data for more than a twentieth of its time.
    pub fn is_starved(&self) -> bool {
        self.wait_share() > 0.05
    }
}

impl fmt::Display for LoaderStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} batches, {} samples, waited {:.1} % of the time, {} ready ({})",
            self.batches,
            self.samples,
            100. * self.wait_share(),
            self.ready,
            ByteSize(self.ready_bytes),
        )?;
        match self.skipped {
            0 => {}
            skipped => write!(f, ", {skipped} skipped")?,
        }
        match self.is_starved() {
            true => f.write_str(": starved, use more workers or read less for each sample"),
            false => Ok(()),
        }
    }
}
