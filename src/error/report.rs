//! The texts of an exhaustion: one line, and the long form.

use std::fmt;

use bytesize::ByteSize;

use super::exhausted::{Holding, Neighbour, Remedy, ResourceExhausted};
use super::rendering;

impl fmt::Display for ResourceExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        rendering::note(self);
        write!(f, "out of {}", self.resource)?;
        if let Some(phase) = self.phase {
            write!(f, " in {phase}")?;
        }
        if let Some(size) = self.micro_batch {
            write!(f, " of a micro-batch of {size}")?;
            if let Some(samples) = &self.samples {
                write!(f, " (samples {}..{})", samples.start, samples.end)?;
            }
        }
        write!(f, ": {}", self.cause)?;
        match (self.bytes.peak.or(self.bytes.in_use), self.bytes.limit) {
            (Some(used), Some(limit)) => {
                write!(f, " ({} of {} used)", ByteSize(used), ByteSize(limit))?
            }
            (Some(used), None) => write!(f, " ({} used)", ByteSize(used))?,
            (None, Some(limit)) => write!(f, " (limit {})", ByteSize(limit))?,
            (None, None) => {}
        }
        if f.alternate() {
            return write_details(self, f);
        }
        match self.remedies.first() {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

/// The long form of [`Display`](fmt::Display): `main` shows this one, and candle's own errors use one text for both.
impl fmt::Debug for ResourceExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#}")
    }
}

impl std::error::Error for ResourceExhausted {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} ({})", self.process),
            None => write!(f, "process {}", self.process),
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.advice)?;
        match self.saves {
            Some(bytes) => write!(f, " (saves about {})", ByteSize(bytes)),
            None => Ok(()),
        }
    }
}

/// The largest neighbours are named; one line counts the rest.
const NEIGHBOURS: usize = 5;

/// Everything after the headline.
fn write_details(exhausted: &ResourceExhausted, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if let Some(device) = exhausted.device {
        write!(f, "\n  {:<30}  {device:?}", "device")?;
    }
    write_use(exhausted, f)?;
    write_device(exhausted, f)?;
    write_remedies(exhausted, f)?;
    match std::error::Error::source(exhausted) {
        // candle's errors carry a whole backtrace in their text when `RUST_BACKTRACE` is set.
        Some(source) => {
            let source = source.to_string();
            let first = source.lines().next().unwrap_or_default();
            write!(f, "\n  {:<30}  {first}", "from candle")
        }
        None => Ok(()),
    }
}

/// The request, and what the program holds.
fn write_use(exhausted: &ResourceExhausted, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let bytes = &exhausted.bytes;
    let bound = bytes.limit.or(bytes.total);
    line(f, "asked for", bytes.requested, bound)?;
    let expected = exhausted.expected_peak;
    line(f, "would have come to (by the fit)", expected, bound)?;
    // The peak counts: the use now is what was left after the failed work was dropped.
    let Some(used) = bytes.peak.or(bytes.in_use) else {
        return Ok(());
    };
    line(f, "highest use", Some(used), bound)?;
    let mut rest = used;
    let mut name = "  activations and all else";
    for holding in &exhausted.held {
        if holding.what == Holding::ACTIVATIONS {
            name = "  all else";
        }
        let what = format!("  {}", holding.what);
        line(f, &what, Some(holding.bytes), Some(used))?;
        rest = rest.saturating_sub(holding.bytes);
    }
    if !exhausted.held.is_empty() && rest > 0 {
        line(f, name, Some(rest), Some(used))?;
    }
    let unused = bytes.reserved.map(|bytes| bytes.saturating_sub(used));
    line(f, "  held by the pool, unused", unused, None)
}

/// The rest of the device, and its holders.
fn write_device(exhausted: &ResourceExhausted, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let bytes = &exhausted.bytes;
    let dropped = bytes.in_use.filter(|_| bytes.peak.is_some());
    line(f, "in use after it was dropped", dropped, None)?;
    line(f, "held by the pool in all", bytes.reserved, None)?;
    line(f, "limit", bytes.limit, None)?;
    line(f, "not the pool's (others, CUDA)", exhausted.others(), None)?;
    for neighbour in exhausted.neighbours.iter().take(NEIGHBOURS) {
        let name = format!("  {neighbour}");
        match neighbour.bytes {
            Some(_) => line(f, &name, neighbour.bytes, None)?,
            None => write!(f, "\n  {name:<31} {:>9}", "n/a")?,
        }
    }
    match exhausted.neighbours.len().saturating_sub(NEIGHBOURS) {
        0 => {}
        more => write!(f, "\n    and {more} more")?,
    }
    line(f, "free on the device", bytes.free, None)?;
    line(f, "capacity", bytes.total, None)
}

fn write_remedies(exhausted: &ResourceExhausted, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if !exhausted.remedies.is_empty() {
        f.write_str("\n  what would help")?;
    }
    for (index, remedy) in exhausted.ranked_remedies().enumerate() {
        write!(f, "\n    {}. {remedy}", index + 1)?;
    }
    Ok(())
}

/// A line with a name, its bytes, and their share of a whole; nothing if the bytes are not known.
fn line(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    bytes: Option<u64>,
    whole: Option<u64>,
) -> fmt::Result {
    let Some(bytes) = bytes else {
        return Ok(());
    };
    let shown = ByteSize(bytes).to_string();
    write!(f, "\n  {name:<31} {shown:>9}")?;
    match whole.filter(|whole| *whole > 0) {
        Some(whole) => write!(f, " {:>4.0} %", bytes as f64 / whole as f64 * 100.),
        None => Ok(()),
    }
}
