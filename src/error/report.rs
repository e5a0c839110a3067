//! The long form of an exhaustion: what was asked for, what holds the memory, what would help.

use std::fmt;

use bytesize::ByteSize;

use super::ResourceExhausted;

/// Something that holds memory while work fails.
///
/// ```
/// use candle_headroom::error::Holding;
///
/// let holding = Holding::new("parameters", 3 << 20);
/// assert_eq!((holding.what, holding.bytes), ("parameters", 3_145_728));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holding {
    /// What it is: `parameters`, `accumulated gradients`, `optimizer state`, [`ACTIVATIONS`](Self::ACTIVATIONS).
    pub what: &'static str,
    /// What it takes, in bytes, counted from its shapes and types; an allocator may round it up. Activations are not counted but told by
    /// the policy's model: what its samples take, as far as it is in use.
    pub bytes: u64,
}

impl Holding {
    /// What the samples of the micro-batch take, by the policy's model.
    pub const ACTIVATIONS: &'static str = "activations (by the fit)";

    /// Memory of this process that the trainer does not hold: data, other models, other trainers.
    pub const OTHERS: &'static str = "other memory of this process";

    /// So many bytes of something.
    pub fn new(what: &'static str, bytes: u64) -> Self {
        Self { what, bytes }
    }
}

/// Another process that holds memory of the same GPU.
///
/// ```
/// use candle_headroom::error::Neighbour;
///
/// let neighbour = Neighbour::new(4711, Some("python3".to_owned()), Some(31 << 30));
/// assert_eq!(neighbour.to_string(), "python3 (4711)");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Neighbour {
    /// Its number.
    pub process: u32,
    /// Its name, as `ps` shows it, where this process may see that.
    pub name: Option<String>,
    /// What it holds, in bytes, where the driver tells.
    pub bytes: Option<u64>,
}

impl Neighbour {
    /// A process that holds so many bytes.
    pub fn new(process: u32, name: Option<String>, bytes: Option<u64>) -> Self {
        Self {
            process,
            name,
            bytes,
        }
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

/// So many neighbours are named; the rest are one line.
const NEIGHBOURS: usize = 5;

/// Behind the headline.
pub(super) fn write(exhausted: &ResourceExhausted, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

/// What was asked for, and what the program itself holds.
fn write_use(exhausted: &ResourceExhausted, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let bytes = &exhausted.bytes;
    let bound = bytes.limit.or(bytes.total);
    for (name, number) in [
        ("asked for", bytes.requested),
        ("would have come to (by the fit)", exhausted.expected_peak),
    ] {
        if let Some(number) = number {
            line(f, name, number, bound)?;
        }
    }
    // The peak is what stood in the way; what is in use now is what was left after the failed work was dropped.
    let Some(used) = bytes.peak.or(bytes.in_use) else {
        return Ok(());
    };
    line(f, "highest use", used, bound)?;
    let mut rest = used;
    let mut name = "  activations and all else";
    for holding in &exhausted.held {
        if holding.what == Holding::ACTIVATIONS {
            name = "  all else";
        }
        line(f, &format!("  {}", holding.what), holding.bytes, Some(used))?;
        rest = rest.saturating_sub(holding.bytes);
    }
    if !exhausted.held.is_empty() && rest > 0 {
        line(f, name, rest, Some(used))?;
    }
    if let Some(reserved) = bytes.reserved {
        let unused = reserved.saturating_sub(used);
        line(f, "  held by the pool, unused", unused, None)?;
    }
    Ok(())
}

/// The rest of the device, and who holds it.
fn write_device(exhausted: &ResourceExhausted, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let bytes = &exhausted.bytes;
    let dropped = bytes.in_use.filter(|_| bytes.peak.is_some());
    for (name, number) in [
        ("in use after it was dropped", dropped),
        ("held by the pool in all", bytes.reserved),
        ("limit", bytes.limit),
        ("not the pool's (others, CUDA)", exhausted.others()),
    ] {
        if let Some(number) = number {
            line(f, name, number, None)?;
        }
    }
    for neighbour in exhausted.neighbours.iter().take(NEIGHBOURS) {
        let name = format!("  {neighbour}");
        match neighbour.bytes {
            Some(bytes) => line(f, &name, bytes, None)?,
            None => write!(f, "\n  {name:<31} {:>9}", "n/a")?,
        }
    }
    match exhausted.neighbours.len().saturating_sub(NEIGHBOURS) {
        0 => {}
        more => write!(f, "\n    and {more} more")?,
    }
    for (name, number) in [
        ("free on the device", bytes.free),
        ("capacity", bytes.total),
    ] {
        if let Some(number) = number {
            line(f, name, number, None)?;
        }
    }
    Ok(())
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

/// A name and its bytes below each other, with their share of a whole.
fn line(f: &mut fmt::Formatter<'_>, name: &str, bytes: u64, whole: Option<u64>) -> fmt::Result {
    let shown = ByteSize(bytes).to_string();
    write!(f, "\n  {name:<31} {shown:>9}")?;
    match whole.filter(|whole| *whole > 0) {
        Some(whole) => write!(f, " {:>4.0} %", bytes as f64 / whole as f64 * 100.),
        None => Ok(()),
    }
}
