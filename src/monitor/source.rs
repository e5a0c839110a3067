//! What is sampled, and how the host is: its memory from `/proc`, where each file is opened once and read by one call per reading.

use std::borrow::Cow;
use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::sample::Sample;
use crate::memory::SystemMemory;

/// In bytes; the lines that are needed are the first of `/proc/meminfo`.
const ROOM: usize = 256;
/// The time between two readings of the host: Linux sums up the numbers for each, which takes longer than the rest of a sample.
const ROUND: Duration = Duration::from_millis(500);

/// A GPU, or the host.
///
/// ```
/// use candle_headroom::monitor::Source;
///
/// let mut source = Source::default(); // or one of `Monitor::sources`
/// source.name = "NVIDIA H100".to_owned();
/// source.cuda = Some(0);
/// assert_eq!(source.to_string(), "cuda:0 NVIDIA H100");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Source {
    /// The GPU's name, or `host`.
    pub name: String,
    /// The GPU's UUID; `None` for the host.
    pub uuid: Option<String>,
    /// The GPU's CUDA ordinal, which candle uses. `None` without the feature `cuda` and where `CUDA_VISIBLE_DEVICES` hides the GPU.
    pub cuda: Option<usize>,
    /// The rank that samples it; see [`MonitorBuilder::group`](super::MonitorBuilder::group).
    pub rank: Option<usize>,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cuda {
            Some(ordinal) => write!(f, "cuda:{ordinal} {}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Samples one source: fills in the values and the health.
pub(super) type Looker = Box<dyn FnMut(&mut Sample) + Send>;

/// Whether something that is done with the first sample, and then once in each period, is to be done with the sample at this time.
/// Half an interval early: samples do not come at exact times, and one that came a little early would have to wait for the next.
pub(super) fn is_due(
    next: &mut Duration,
    at: Duration,
    period: Duration,
    interval: Duration,
) -> bool {
    let is_due = at >= *next;
    if is_due {
        *next = at.saturating_add(period.saturating_sub(interval / 2));
    }
    is_due
}

/// For how long trainers have waited for data without it being in a sample yet; `None` before the first batch of a loader.
pub(super) type Waited = Arc<Mutex<Option<Duration>>>;

/// The host, with the share of time that trainers waited for data.
pub(super) fn host(interval: Duration, waited: Waited) -> (Source, Looker) {
    let meminfo = File::open("/proc/meminfo").ok();
    let statm = File::open("/proc/self/statm").ok();
    let page = page_size();
    let mut read_at = Duration::ZERO;
    let mut before = Duration::ZERO;
    let (mut total, mut free, mut process) = (None, None, None);
    let source = Source {
        name: "host".to_owned(),
        ..Source::default()
    };
    let looker: Looker = Box::new(move |sample| {
        if is_due(&mut read_at, sample.at, ROUND, interval) {
            let mut buffer = [0; ROOM];
            let text = beginning(meminfo.as_ref(), &mut buffer);
            total = SystemMemory::meminfo(&text, "MemTotal:");
            free = SystemMemory::meminfo(&text, "MemAvailable:");
            let text = beginning(statm.as_ref(), &mut buffer);
            let resident = text.split(' ').nth(1);
            let pages = resident.and_then(|pages| pages.parse::<u64>().ok());
            process = pages.and_then(|pages| pages.checked_mul(page?));
        }
        (sample.total, sample.free, sample.process) = (total, free, process);
        let both = total.zip(free);
        sample.used = both.map(|(total, free)| total.saturating_sub(free));
        let since = sample.at.saturating_sub(before);
        before = sample.at;
        sample.data_wait = waited.lock().as_mut().map(|waited| share(waited, since));
    });
    (source, looker)
}

/// The percentage of the time since the sample before that was waited. A wait is known once it has ended: what is longer than that time
/// is left for the samples to come, but a long one is not shown long after it.
fn share(waited: &mut Duration, since: Duration) -> u64 {
    const LEFT: Duration = Duration::from_secs(5);
    let shown = since.min(*waited);
    *waited = (*waited - shown).min(LEFT);
    match since.as_secs_f64() {
        0. => 0,
        since => (100. * shown.as_secs_f64() / since).min(100.) as u64,
    }
}

/// In bytes, from the kernel's list of keys with their values.
fn page_size() -> Option<u64> {
    const AT_PAGESZ: usize = 6;
    let list = fs::read("/proc/self/auxv").ok()?;
    let (words, _) = list.as_chunks();
    let words: Vec<_> = words.iter().copied().map(usize::from_ne_bytes).collect();
    let (pairs, _) = words.as_chunks::<2>();
    let found = pairs.iter().find(|[key, _]| *key == AT_PAGESZ);
    found.map(|[_, size]| *size as u64)
}

/// The beginning of a file, or an empty text if it cannot be read. Allocates only if the text is not UTF-8.
fn beginning<'a>(file: Option<&File>, buffer: &'a mut [u8]) -> Cow<'a, str> {
    let length = file.and_then(|mut file| {
        file.rewind().ok()?;
        file.read(buffer).ok()
    });
    let bytes = buffer.get(..length.unwrap_or(0)).unwrap_or_default();
    String::from_utf8_lossy(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_that_comes_a_little_early_is_not_missed() {
        let half_a_second = Duration::from_millis(500);
        let mut next = Duration::ZERO;
        let mut is_due = |microseconds| {
            let at = Duration::from_micros(microseconds);
            is_due(&mut next, at, half_a_second, half_a_second)
        };
        assert!([0, 500_300, 1_000_100, 1_500_200, 2_000_000].map(&mut is_due) == [true; 5]);
        assert!(!is_due(2_100_000), "too often");
    }
}
