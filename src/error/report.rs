//! The long form of an exhaustion: what was asked for, what holds the memory, what would help.

use std::fmt;

use bytesize::ByteSize;

use super::ResourceExhausted;

/// Something that holds memory while work fails.
///
/// ```
/// use candle_headroom::Holding;
///
/// let holding = Holding::new("parameters", 3 << 20);
/// assert_eq!((holding.what, holding.bytes), ("parameters", 3_145_728));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holding {
    /// What it is: `parameters`, `accumulated gradients`, `optimizer state`.
    pub what: &'static str,
    /// What it takes, in bytes, counted from its shapes and types; an allocator may round it up.
    pub bytes: u64,
}

impl Holding {
    /// So many bytes of something.
    pub fn new(what: &'static str, bytes: u64) -> Self {
        Self { what, bytes }
    }
}

/// Behind the headline.
pub(super) fn write(exhausted: &ResourceExhausted, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let bytes = &exhausted.bytes;
    if let Some(device) = exhausted.device {
        write!(f, "\n  device                          {device:?}")?;
    }
    if let Some(requested) = bytes.requested {
        line(f, "asked for", requested, bytes.limit)?;
    }
    // The peak is what stood in the way; what is in use now is what was left after the failed work was dropped.
    if let Some(used) = bytes.peak.or(bytes.in_use) {
        line(f, "highest use", used, bytes.limit.or(bytes.total))?;
        let mut rest = used;
        for holding in &exhausted.held {
            line(f, &format!("  {}", holding.what), holding.bytes, Some(used))?;
            rest = rest.saturating_sub(holding.bytes);
        }
        if !exhausted.held.is_empty() && rest > 0 {
            line(f, "  activations and all else", rest, Some(used))?;
        }
        if let Some(reserved) = bytes.reserved {
            line(
                f,
                "  held by the pool, unused",
                reserved.saturating_sub(used),
                None,
            )?;
        }
    }
    for (name, number) in [
        (
            "in use after it was dropped",
            bytes.in_use.filter(|_| bytes.peak.is_some()),
        ),
        ("held by the pool in all", bytes.reserved),
        ("limit", bytes.limit),
        ("not the pool's (others, CUDA)", exhausted.others()),
        ("free on the device", bytes.free),
        ("capacity", bytes.total),
    ] {
        if let Some(number) = number {
            line(f, name, number, None)?;
        }
    }
    if !exhausted.remedies.is_empty() {
        f.write_str("\n  what would help")?;
    }
    for (index, remedy) in exhausted.ranked_remedies().enumerate() {
        write!(f, "\n    {}. {remedy}", index + 1)?;
    }
    match std::error::Error::source(exhausted) {
        // candle's errors carry a whole backtrace in their text when `RUST_BACKTRACE` is set.
        Some(source) => {
            let source = source.to_string();
            write!(
                f,
                "\n  from candle                     {}",
                source.lines().next().unwrap_or_default()
            )
        }
        None => Ok(()),
    }
}

/// A name and its bytes below each other, with their share of a whole.
fn line(f: &mut fmt::Formatter<'_>, name: &str, bytes: u64, whole: Option<u64>) -> fmt::Result {
    let shown = ByteSize(bytes).to_string();
    write!(f, "\n  {name:<30} {shown:>10}")?;
    match whole.filter(|whole| *whole > 0) {
        Some(whole) => write!(f, " {:>4.0} %", bytes as f64 / whole as f64 * 100.),
        None => Ok(()),
    }
}
