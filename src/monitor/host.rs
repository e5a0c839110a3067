//! The host's memory from `/proc`. Each file is opened once and read by one call per reading.

use std::borrow::Cow;
use std::fs::File;
use std::io::{Read, Seek};
use std::time::Duration;

use super::source::{Looker, Source, is_due};
use crate::data::waited;
use crate::memory::SystemMemory;

/// In bytes; the lines that are needed are the first of `/proc/meminfo`.
const ROOM: usize = 256;
/// The time between two readings: Linux sums up the numbers for each, which takes longer than the rest of a sample.
const ROUND: Duration = Duration::from_millis(500);

pub(super) fn open(interval: Duration) -> (Source, Looker) {
    let meminfo = File::open("/proc/meminfo").ok();
    let statm = File::open("/proc/self/statm").ok();
    let page = page_size();
    let mut read_at = Duration::ZERO;
    let (mut total, mut free, mut process) = (None, None, None);
    // When the sample before was taken, and how long data had been waited for until then.
    let mut before: Option<(Duration, Duration)> = None;
    let source = Source {
        name: "host".to_owned(),
        uuid: None,
        cuda: None,
        rank: None,
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
        let now = waited().map(|waited| (sample.at, waited));
        sample.data_wait = now
            .zip(before)
            .map(|((at, waited), (at_before, waited_before))| {
                let wait = waited.saturating_sub(waited_before).as_secs_f64();
                match at.saturating_sub(at_before).as_secs_f64() {
                    0. => 0,
                    since => (100. * wait / since).min(100.) as u64,
                }
            });
        before = now;
    });
    (source, looker)
}

/// In bytes.
fn page_size() -> Option<u64> {
    // SAFETY: it takes any name and answers -1 for an unknown one.
    #[cfg(unix)]
    return u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok();
    #[cfg(not(unix))]
    None
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
