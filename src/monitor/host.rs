//! The host's memory from `/proc`. Each file is opened once and read by one call per sample.

use std::fs::{self, File};
use std::time::Duration;

use super::sample::Sample;
use super::source::{Look, again};

/// In bytes; the fields that are needed are in the first lines of `/proc/meminfo`.
const ROOM: usize = 256;
/// The time between two readings: Linux sums up the numbers for each, which takes longer than the rest of a sample.
const ROUND: Duration = Duration::from_millis(500);
/// The key of the page size in `/proc/self/auxv`.
const PAGE_SIZE: usize = 6;

#[derive(Debug)]
pub(super) struct Host {
    meminfo: Option<File>,
    statm: Option<File>,
    /// In bytes.
    page: Option<u64>,
    total: Option<u64>,
    free: Option<u64>,
    process: Option<u64>,
    /// When the files are read next.
    read_at: Duration,
    interval: Duration,
}

impl Host {
    pub(super) fn open(interval: Duration) -> Self {
        Self {
            meminfo: File::open("/proc/meminfo").ok(),
            statm: File::open("/proc/self/statm").ok(),
            page: page_size(&fs::read("/proc/self/auxv").unwrap_or_default()),
            total: None,
            free: None,
            process: None,
            read_at: Duration::ZERO,
            interval,
        }
    }
}

impl Look for Host {
    fn look(&mut self, sample: &mut Sample) {
        if sample.at >= self.read_at {
            self.read_at = again(sample.at, ROUND, self.interval);
            let mut buffer = [0; ROOM];
            let text = read(self.meminfo.as_ref(), &mut buffer);
            self.total = kibibytes(text, b"MemTotal:");
            self.free = kibibytes(text, b"MemAvailable:");
            let pages = resident_pages(read(self.statm.as_ref(), &mut buffer));
            self.process = pages.and_then(|pages| pages.checked_mul(self.page?));
        }
        (sample.total, sample.free) = (self.total, self.free);
        let both = sample.total.zip(sample.free);
        sample.used = both.map(|(total, free)| total.saturating_sub(free));
        sample.process = self.process;
    }
}

/// The beginning of a file in `/proc`.
#[cfg(unix)]
fn read<'a>(file: Option<&File>, buffer: &'a mut [u8]) -> &'a [u8] {
    use std::os::unix::fs::FileExt;
    let length = file.and_then(|file| file.read_at(buffer, 0).ok());
    buffer.get(..length.unwrap_or(0)).unwrap_or_default()
}

#[cfg(not(unix))]
fn read<'a>(_: Option<&File>, _: &'a mut [u8]) -> &'a [u8] {
    &[]
}

/// The second number of `/proc/self/statm`.
fn resident_pages(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.split_whitespace().nth(1)?.parse().ok()
}

/// The page size from pairs of a key and a value, each as long as a pointer.
fn page_size(auxiliary: &[u8]) -> Option<u64> {
    let number = |bytes: &[u8]| Some(usize::from_ne_bytes(bytes.try_into().ok()?));
    let mut numbers = auxiliary.chunks_exact(size_of::<usize>()).map(number);
    while let (Some(Some(kind)), Some(Some(value))) = (numbers.next(), numbers.next()) {
        if kind == PAGE_SIZE {
            return u64::try_from(value).ok();
        }
    }
    None
}

/// The value of a line such as `MemAvailable:   12345 kB`, in bytes.
fn kibibytes(text: &[u8], key: &[u8]) -> Option<u64> {
    let line = text
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(key))?;
    let number = std::str::from_utf8(line).ok()?.trim().strip_suffix("kB")?;
    number.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn malformed_lines_are_unknown() {
        let text = b"MemTotal:        8 kB\nMemAvailable:  4 kB\nOdd: 1 pages\nLast: 12";
        assert_eq!(kibibytes(text, b"MemTotal:"), Some(8192));
        assert_eq!(kibibytes(text, b"MemAvailable:"), Some(4096));
        assert_eq!(kibibytes(text, b"Odd:"), None);
        assert_eq!(kibibytes(text, b"Last:"), None, "an incomplete line");
        assert_eq!(kibibytes(text, b"Swap:"), None);
        assert_eq!(resident_pages(b"10 7 3 1 0 1 0\n"), Some(7));
        assert_eq!((resident_pages(b"10"), page_size(b"")), (None, None));
    }

    #[test]
    fn a_sample_that_comes_a_little_early_reads_the_files_too() {
        let mut host = Host::open(ROUND);
        let mut read_at = Duration::MAX;
        for at in [0, 500_300, 1_000_100, 1_500_200, 2_000_000] {
            let mut sample = Sample::blank(0, SystemTime::now(), Duration::from_micros(at));
            host.look(&mut sample);
            assert_ne!(host.read_at, read_at, "not read at {at} µs");
            read_at = host.read_at;
        }
        let mut sample = Sample::blank(0, SystemTime::now(), Duration::from_micros(2_100_000));
        host.look(&mut sample);
        assert_eq!(host.read_at, read_at, "read too often");
    }
}
