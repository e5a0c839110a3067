//! The texts of an exhaustion, one line and the long form, of a device fault, and of the errors of training that contain one.

use std::error::Error as StdError;
use std::fmt::{self, Formatter};

use bytesize::ByteSize;

use super::circumstances::{Cause, Holding, Resource};
use super::codes::DeviceFault;
use super::error::{LOST, UpdateInterrupted, WindowLost};
use super::exhausted::ResourceExhausted;
use super::unreached::{UNREACHED, UnreachedParameters};
use crate::output::first_line;

/// Words of an error that is not retried, whatever names and causes it shows, as [`LOST`] and [`UNREACHED`].
const INTERRUPTED: &str = "the optimizer was interrupted during an update";

/// Whether a text is that of one of these errors.
pub(super) fn is_final(text: &str) -> bool {
    is_unreached(text) || text.contains(LOST) || text.contains(INTERRUPTED)
}

/// Whether it says for how many of how many parameters: the words alone may be anybody's.
fn is_unreached(text: &str) -> bool {
    text.split(UNREACHED).skip(1).any(|rest| {
        let words: Vec<_> = rest.split_whitespace().take(4).collect();
        let is_number = |word: &str| word.parse::<usize>().is_ok();
        matches!(words[..], [count, "of", all, what]
            if is_number(count) && is_number(all) && what.starts_with("parameters"))
    })
}

/// What the text of an exhaustion says of it: what ran out, in which phase, and why.
pub(super) fn read(text: &str) -> Option<ResourceExhausted> {
    use Cause::{DeviceFull, Fragmented, Limit, Neighbour, NeverFits, Unknown};
    use Resource::{DeviceMemory, HostMemory, LibraryWorkspace, PinnedMemory};
    let resources = [DeviceMemory, HostMemory, PinnedMemory, LibraryWorkspace];
    let resources = resources.into_iter().chain([Resource::Unknown]);
    let found = resources.filter_map(|resource| {
        let (_, rest) = text.split_once(&format!("out of {resource}"))?;
        Some((resource, rest))
    });
    // The first in the text is the outermost.
    let (resource, rest) = found.max_by_key(|(_, rest)| rest.len())?;
    let (place, why) = rest.split_once(": ")?;
    let causes = [Limit, DeviceFull, Fragmented, Neighbour, NeverFits, Unknown];
    let mut causes = causes.into_iter();
    let cause = causes.find(|cause| why.starts_with(&cause.to_string()))?;
    let mut read = ResourceExhausted::new(resource, cause);
    let phase = place.split(' ').nth(2);
    read.phase = phase.and_then(|phase| serde_json::from_value(phase.into()).ok());
    Some(read)
}

impl fmt::Display for ResourceExhausted {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "out of {}", self.resource)?;
        if let Some(phase) = self.phase {
            write!(f, " in {phase}")?;
        }
        if let Some(size) = self.micro_batch {
            write!(f, " of a micro-batch of {size}")?;
            if let Some(samples) = &self.samples {
                write!(f, " (samples {samples:?})")?;
            }
        }
        write!(f, ": {}", self.cause)?;
        let used = self.bytes.peak.or(self.bytes.in_use).map(ByteSize);
        match (used, self.bytes.limit.map(ByteSize)) {
            (Some(used), Some(limit)) => write!(f, " ({used} of {limit} used)")?,
            (Some(used), None) => write!(f, " ({used} used)")?,
            (None, Some(limit)) => write!(f, " (limit {limit})")?,
            (None, None) => {}
        }
        match self.remedies.first() {
            _ if f.alternate() => write_details(self, f),
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

impl StdError for ResourceExhausted {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (name, code, cause, remedy) = (self.name, self.code, self.cause, self.remedy);
        write!(
            f,
            "device fault {name} ({code}): {cause}; the device is lost to this process: save what is in host memory, start a new \
             process, and {remedy}"
        )
    }
}

impl StdError for DeviceFault {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl fmt::Display for UpdateInterrupted {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{INTERRUPTED}, parameters may be partly updated: resume from a checkpoint (or set the parameters and call `load_state`); an \
             optimizer that saves no state, as in `Foreign`, is then replaced by a new one with `replace_optimizer`",
        )?;
        match &self.reason {
            Some(reason) => write!(f, " ({reason})"),
            None => Ok(()),
        }
    }
}

/// The text of `Display`, in the long form where there is one: `main` shows this one, and candle's own errors use one text for both.
macro_rules! debug_as_display {
    ($($error:ty),+) => {$(
        impl fmt::Debug for $error {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                write!(f, "{self:#}")
            }
        }
    )+};
}

debug_as_display!(
    ResourceExhausted,
    WindowLost,
    UpdateInterrupted,
    UnreachedParameters
);

/// Everything after the headline.
fn write_details(exhausted: &ResourceExhausted, f: &mut Formatter<'_>) -> fmt::Result {
    let bytes = &exhausted.bytes;
    let bound = bytes.limit.or(bytes.total);
    // The peak counts: the use now is what was left after the failed work was dropped.
    let used = bytes.peak.or(bytes.in_use);
    let unused = (bytes.reserved.zip(used)).map(|(reserved, used)| reserved.saturating_sub(used));
    let dropped = bytes.in_use.filter(|_| bytes.peak.is_some());
    if let Some(device) = &exhausted.device {
        write!(f, "\n  {:<30}  {device}", "device")?;
    }
    line(f, "asked for", bytes.requested, bound)?;
    let expected = exhausted.expected_peak;
    line(f, "would have come to (by the fit)", expected, bound)?;
    line(f, "highest use", used, bound)?;
    write_holdings(exhausted, used.unwrap_or(0), f)?;
    write_layers(exhausted, used, f)?;
    line(f, "  held by the pool, unused", unused, None)?;
    line(f, "in use after it was dropped", dropped, None)?;
    line(f, "held by the pool in all", bytes.reserved, None)?;
    line(f, "limit", bytes.limit, None)?;
    line(f, "not the pool's (others, CUDA)", bytes.others(), None)?;
    write_neighbours(exhausted, f)?;
    line(f, "free on the device", bytes.free, None)?;
    line(f, "capacity", bytes.total, None)?;
    for (index, remedy) in exhausted.ranked_remedies().enumerate() {
        if index == 0 {
            f.write_str("\n  what would help")?;
        }
        write!(f, "\n    {}. {remedy}", index + 1)?;
    }
    // candle's errors carry a whole backtrace in their text when `RUST_BACKTRACE` is set.
    match exhausted.source.as_ref().map(ToString::to_string) {
        Some(text) => write!(f, "\n  {:<30}  {}", "from candle", first_line(&text)),
        None => Ok(()),
    }
}

/// What is known to hold the `used` bytes, and the rest of them.
fn write_holdings(exhausted: &ResourceExhausted, used: u64, f: &mut Formatter<'_>) -> fmt::Result {
    let held = &exhausted.held;
    for holding in held {
        let what = format!("  {}", holding.what);
        line(f, &what, Some(holding.bytes), Some(used))?;
    }
    let sum = held.iter().map(|held| held.bytes);
    let rest = sum.fold(used, u64::saturating_sub);
    let name = match held.iter().any(|held| held.what == Holding::ACTIVATIONS) {
        true => "  all else",
        false => "  activations and all else",
    };
    let rest = Some(rest).filter(|rest| *rest > 0 && !held.is_empty());
    line(f, name, rest, Some(used))
}

/// The layers with their shares of the `used` bytes.
fn write_layers(
    exhausted: &ResourceExhausted,
    used: Option<u64>,
    f: &mut Formatter<'_>,
) -> fmt::Result {
    let used = used.filter(|used| *used > 0 && !exhausted.layers.is_empty());
    let Some(used) = used else { return Ok(()) };
    for (index, layer) in exhausted.layers.iter().enumerate() {
        let before = if index == 0 { "\n  held by: " } else { ", " };
        let share = layer.bytes as f64 / used as f64 * 100.;
        write!(f, "{before}{} {share:.0} %", layer.what)?;
    }
    Ok(())
}

/// The largest neighbours by name, and the number of the others.
fn write_neighbours(exhausted: &ResourceExhausted, f: &mut Formatter<'_>) -> fmt::Result {
    const MOST: usize = 5;
    for neighbour in exhausted.neighbours.iter().take(MOST) {
        let bytes = neighbour.bytes.map(|bytes| ByteSize(bytes).to_string());
        let bytes = bytes.as_deref().unwrap_or("n/a");
        write!(f, "\n    {:<29} {bytes:>9}", neighbour.to_string())?;
    }
    match exhausted.neighbours.len().saturating_sub(MOST) {
        0 => Ok(()),
        more => write!(f, "\n    and {more} more"),
    }
}

/// A line with a name, its bytes, and their share of a whole; nothing if the bytes are not known.
fn line(f: &mut Formatter<'_>, name: &str, bytes: Option<u64>, whole: Option<u64>) -> fmt::Result {
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
