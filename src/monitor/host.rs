//! The host's memory from `/proc`, read into a buffer that lives as long as the monitor.

use std::fs::File;
use std::io::{Read, Seek};

use super::Sample;
use super::source::Look;

/// `/proc/meminfo` has some 1.5 KB; what is asked for stands in its first lines.
const ROOM: usize = 512;

#[derive(Debug)]
pub(super) struct Host {
    meminfo: Option<File>,
    status: Option<File>,
}

impl Host {
    pub(super) fn open() -> Self {
        Self {
            meminfo: File::open("/proc/meminfo").ok(),
            // Not /proc/self/statm: that counts in pages, whose size would have to be asked for.
            status: File::open("/proc/self/status").ok(),
        }
    }
}

impl Look for Host {
    fn look(&mut self, sample: &mut Sample) {
        let mut buffer = [0; ROOM];
        let text = read(&mut self.meminfo, &mut buffer);
        sample.total = kibibytes(text, b"MemTotal:");
        sample.free = kibibytes(text, b"MemAvailable:");
        sample.used =
            (sample.total.zip(sample.free)).map(|(total, free)| total.saturating_sub(free));
        let mut buffer = [0; 2 * ROOM];
        sample.process = kibibytes(read(&mut self.status, &mut buffer), b"VmRSS:");
    }
}

/// The beginning of a file that is made anew at each reading.
fn read<'a>(file: &mut Option<File>, buffer: &'a mut [u8]) -> &'a [u8] {
    let length = file.as_mut().and_then(|file| {
        file.rewind().ok()?;
        file.read(buffer).ok()
    });
    buffer.get(..length.unwrap_or(0)).unwrap_or_default()
}

/// A line such as `MemAvailable:   12345 kB`, in bytes.
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
    fn lines_are_read_and_anything_else_is_not_known() {
        let text = b"MemTotal:        8 kB\nMemAvailable:  4 kB\nVmRSS: 1 pages\nLast: 12";
        assert_eq!(kibibytes(text, b"MemTotal:"), Some(8192));
        assert_eq!(kibibytes(text, b"MemAvailable:"), Some(4096));
        assert_eq!(kibibytes(text, b"VmRSS:"), None);
        assert_eq!(kibibytes(text, b"Last:"), None, "a line that was cut off");
        assert_eq!(kibibytes(text, b"Swap:"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_is_read_again_and_again() {
        let mut host = Host::open();
        for _ in 0..3 {
            let mut sample = Sample::blank(0, SystemTime::now(), Duration::ZERO);
            host.look(&mut sample);
            assert!(
                sample.total > sample.used && sample.used > Some(0),
                "{sample}"
            );
            assert!(sample.process > Some(1 << 20), "{sample}");
        }
    }
}
