//! [`ResourceExhausted`], which an incident log writes and reads as it is, and its texts: one line and the long form.

use std::cmp::Reverse;
use std::error::Error as StdError;
use std::fmt::{self, Formatter};
use std::ops::Range;
use std::sync::Arc;

use bytesize::ByteSize;
use candle_core::DeviceLocation;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::circumstances::{Cause, Holding, Phase, Remedy, Resource};
use crate::environment::Neighbour;
use crate::output::{first_line, public_line};

/// Memory ran out, with everything that was known about it at that moment.
///
/// It goes into a [`candle_core::Error`] by `?` and comes out again through [`ErrorExt`](super::ErrorExt). `{}` writes one line,
/// `{:#}` and `{:?}` the long form with every number and remedy.
///
/// ```
/// use candle_headroom::{ErrorExt, error::Resource};
///
/// // The text that candle keeps of a driver's error after formatting it.
/// let error = candle_core::Error::msg("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")");
/// let exhausted = error.resource_exhausted().expect("an exhaustion");
/// assert_eq!(exhausted.resource, Resource::DeviceMemory);
/// assert_eq!(exhausted.bytes.requested, None); // not known, so not 0
/// ```
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ResourceExhausted {
    /// The device, as in `cuda:0`; `None` where only an error's text was left.
    pub device: Option<String>,
    /// What ran out.
    pub resource: Resource,
    /// The part of the work; `None` outside a trainer and [`process_batches`](crate::process_batches).
    #[serde(deserialize_with = "known")]
    pub phase: Option<Phase>,
    /// Why it ran out.
    pub cause: Cause,
    /// The memory's state when it ran out.
    pub bytes: MemoryReading,
    /// The use that the policy's model predicts for the whole micro-batch, in bytes; `None` before there is a model.
    pub expected_peak: Option<u64>,
    /// The size of the failed micro-batch, in samples.
    pub micro_batch: Option<usize>,
    /// The failed samples, as positions in the batch.
    pub samples: Option<Range<usize>>,
    /// What is known to hold the memory: a trainer's parameters, gradients and optimizer state, activations by the policy's model,
    /// and the rest of the process where that is the reason. The remainder is transient gradients and workspaces.
    pub held: Vec<Holding>,
    /// The layers that held the most when the use was highest, numbered ones put together, as in `block.*.mlp`. Empty without a
    /// `LayerMemory` (feature `layers`).
    pub layers: Vec<Holding>,
    /// Other processes on the GPU, the largest first; read when a step finally fails. Empty if there are none or the driver does not
    /// list them, as in most containers.
    pub neighbours: Vec<Neighbour>,
    /// Remedies, the simplest first; [`ranked_remedies`](Self::ranked_remedies) sorts them by bytes.
    pub remedies: Vec<Remedy>,
    #[serde(serialize_with = "write_source", deserialize_with = "read_source")]
    pub(super) source: Option<Source>,
}

/// Shared, because candle's errors cannot be cloned.
pub(super) type Source = Arc<candle_core::Error>;

/// A device's memory at one moment, in bytes. What is not known is `None`, never 0.
///
/// On the host `reserved` is `None`, because there is no pool, and on a device that nobody counts all fields are.
///
/// ```
/// use candle_headroom::error::MemoryReading;
///
/// let mut reading = MemoryReading::default(); // for a test of a policy
/// (reading.in_use, reading.limit) = (Some(3 << 30), Some(8 << 30));
/// assert_eq!((reading.peak, reading.others()), (None, None)); // not known
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct MemoryReading {
    /// Size of the failed allocation. candle's errors do not carry it.
    pub requested: Option<u64>,
    /// In use by the program.
    pub in_use: Option<u64>,
    /// Held by the program's pool, in use or not.
    pub reserved: Option<u64>,
    /// The highest use since the micro-batch began.
    pub peak: Option<u64>,
    /// The limit.
    pub limit: Option<u64>,
    /// Free on the device.
    pub free: Option<u64>,
    /// The device's capacity.
    pub total: Option<u64>,
}

impl MemoryReading {
    /// Bytes taken on the device outside the program's pool: on a GPU by NVIDIA's contexts and libraries as well as other processes.
    ///
    /// `total − free − reserved`; `None` if one of them is not known, as on the host.
    ///
    /// ```
    /// use candle_headroom::error::MemoryReading;
    ///
    /// let mut reading = MemoryReading::default();
    /// (reading.total, reading.free) = (Some(24 << 30), Some(4 << 30));
    /// reading.reserved = Some(15 << 30);
    /// assert_eq!(reading.others(), Some(5 << 30));
    /// ```
    pub fn others(&self) -> Option<u64> {
        let taken = self.total?.checked_sub(self.free?)?;
        taken.checked_sub(self.reserved?)
    }
}

impl ResourceExhausted {
    /// An exhaustion of which nothing else is known, for an allocator or a library of your own that refuses memory. A trainer that finds it
    /// in a closure's error retries as after any other, and fills in what it knows.
    ///
    /// ```
    /// use candle_headroom::error::{Cause, Resource};
    /// use candle_headroom::{ErrorExt, ResourceExhausted};
    ///
    /// let refused = ResourceExhausted::new(Resource::PinnedMemory, Cause::Unknown);
    /// let error = candle_core::Error::from(refused); // by `?` in a closure
    /// assert_eq!(error.resource_exhausted().unwrap().resource, Resource::PinnedMemory);
    /// ```
    pub fn new(resource: Resource, cause: Cause) -> Self {
        Self {
            resource,
            cause,
            ..Self::default()
        }
    }

    /// The remedies by the bytes that they save, the most first; then those without an estimate; last those that save less than a hundredth of
    /// what is missing.
    ///
    /// Smaller micro-batches save what the policy's model predicts, or half of what the failed one took. A trainer adds what its
    /// optimizer could do without: other moments, another algorithm, frozen parameters.
    ///
    /// ```
    /// use candle_headroom::ResourceExhausted;
    /// use candle_headroom::error::{Cause, Remedy, Resource};
    ///
    /// let mut exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::Limit);
    /// exhausted.remedies = vec![
    ///     Remedy::new("raise the limit", None),
    ///     Remedy::new("train in bf16", Some(1 << 30)),
    ///     Remedy::new("halve the micro-batch", Some(3 << 30)),
    /// ];
    /// let ranked: Vec<_> = exhausted.ranked_remedies().map(ToString::to_string).collect();
    /// assert_eq!(ranked[0], "halve the micro-batch (saves about 3.0 GiB)");
    /// assert_eq!(ranked[2], "raise the limit");
    ///
    /// // 400 GiB are missing, so what saves 3 GiB comes last.
    /// (exhausted.bytes.limit, exhausted.bytes.peak) = (Some(8 << 30), Some(408 << 30));
    /// let first = exhausted.ranked_remedies().next().expect("a remedy");
    /// assert_eq!(first.to_string(), "raise the limit");
    /// ```
    pub fn ranked_remedies(&self) -> impl Iterator<Item = &Remedy> {
        let seen = self.expected_peak.max(self.bytes.peak);
        let bound = self.bytes.limit.or(self.bytes.total);
        let missing = seen
            .zip(bound)
            .map_or(0, |(seen, bound)| seen.saturating_sub(bound));
        let is_too_little =
            |remedy: &Remedy| remedy.saves.is_some_and(|saves| saves < missing / 100);
        let mut remedies: Vec<&Remedy> = self.remedies.iter().collect();
        remedies.sort_by_key(|remedy| (is_too_little(remedy), Reverse(remedy.saves)));
        remedies.into_iter()
    }

    /// Bytes that the process uses besides what is known to be held for the work, if the failed work may fit once they are
    /// freed.
    ///
    /// What was seen of the work is a lower bound: under a hard limit the refused allocation is not in the peak. Unless more was seen
    /// than fits, the rest of the process is to blame if without it the room would at least double.
    pub(crate) fn other_use_in_the_way(&self) -> Option<u64> {
        let (in_use, bound) = (self.bytes.in_use?, self.bytes.limit.or(self.bytes.total)?);
        let held = self.held.iter().map(|held| held.bytes);
        let other = held.fold(in_use, u64::saturating_sub);
        let seen = self.expected_peak.max(self.bytes.peak).unwrap_or(in_use);
        let may_fit_alone = match seen > bound {
            true => seen.saturating_sub(other) <= bound,
            false => other > 0 && other >= bound.saturating_sub(in_use),
        };
        may_fit_alone.then_some(other)
    }
}

/// As PyTorch names devices.
pub(crate) fn device_name(device: DeviceLocation) -> String {
    match device {
        DeviceLocation::Cpu => "cpu".to_owned(),
        DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
    }
}

/// Reads a value, or `None` if it is not one that this version knows.
pub(crate) fn known<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    from: D,
) -> Result<Option<T>, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    Ok(serde_json::from_value(value).ok())
}

/// The first line: candle's errors have a whole backtrace in their text when `RUST_BACKTRACE` is set.
fn write_source<S: Serializer>(source: &Option<Source>, to: S) -> Result<S::Ok, S::Error> {
    let text = source.as_ref().map(ToString::to_string);
    text.as_deref().map(public_line).serialize(to)
}

fn read_source<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Source>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    Ok(text.map(|text| Arc::new(candle_core::Error::Msg(text))))
}

/// What the text of an exhaustion says of it: what ran out, in which phase, and why.
pub(super) fn read(text: &str) -> Option<ResourceExhausted> {
    use Cause::{DeviceFull, Fragmented, IndexRange, Limit, Neighbour, NeverFits, Unknown};
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
    let causes = [
        Limit, DeviceFull, Fragmented, Neighbour, IndexRange, NeverFits, Unknown,
    ];
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

/// The long form: `main` shows this one, and candle's own errors use one text for both.
impl fmt::Debug for ResourceExhausted {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#}")
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_the_process_is_the_reason_unless_the_work_is_too_large_by_itself() {
        const MIB: u64 = 1 << 20;
        let other_use = |in_use, peak, held: &[u64]| {
            let mut exhausted = ResourceExhausted::new(Resource::HostMemory, Cause::Limit);
            let bytes = &mut exhausted.bytes;
            (bytes.in_use, bytes.peak) = (Some(in_use), Some(peak));
            bytes.limit = Some(48 * MIB);
            let held = held.iter().map(|bytes| Holding::new("parameters", *bytes));
            exhausted.held = held.collect();
            exhausted.other_use_in_the_way()
        };
        // Another thread holds 47 MiB; the work takes 0.5.
        let crowded = other_use(47 * MIB + 1024, 48 * MIB + 1, &[1000, 24]);
        assert_eq!(crowded, Some(47 * MIB));
        // Refused by a hard limit: the peak stays below it.
        assert!(other_use(47 * MIB, 47 * MIB, &[1024]).is_some());
        assert_eq!(other_use(MIB, 60 * MIB, &[1024]), None);
        assert_eq!(other_use(20 * MIB, 20 * MIB, &[20 * MIB]), None);
        let unknown = other_use(47 * MIB, 49 * MIB, &[]);
        assert_eq!(unknown, Some(47 * MIB), "nothing is held for this work");
    }
}
