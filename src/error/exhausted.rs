//! [`ResourceExhausted`] and its parts.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use candle_core::DeviceLocation;

use super::circumstances::{Cause, Phase, Resource};

/// Memory ran out, with everything that was known about it at that moment.
///
/// It goes into a [`candle_core::Error`] by `?` and comes out again through [`ErrorExt`](super::ErrorExt). `{}` writes one line, `{:#}` and `{:?}`
/// the long form with every number and remedy.
///
/// ```
/// use candle_headroom::error::Resource;
/// use candle_headroom::ErrorExt;
///
/// // The text that candle keeps of a driver's error after formatting it.
/// let error = candle_core::Error::msg("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")");
/// let exhausted = error.resource_exhausted().expect("an exhaustion");
/// assert_eq!(exhausted.resource, Resource::DeviceMemory);
/// assert_eq!(exhausted.bytes.requested, None); // not known, so not 0
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct ResourceExhausted {
    /// The device; `None` where only an error's text was left.
    pub device: Option<DeviceLocation>,
    /// What ran out.
    pub resource: Resource,
    /// The part of the work; `None` outside a trainer or [`process_batches`](crate::process_batches).
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
    /// What is known to hold the memory: parameters, gradients and optimizer state of a trainer, activations by the policy's model, and the rest of
    /// the process where that is the reason. The remainder is transient gradients and workspaces.
    pub held: Vec<Holding>,
    /// Other processes on the GPU, the largest first; read when a step finally fails. Empty if there are none or if the driver does not list
    /// them, as in most containers.
    pub neighbours: Vec<Neighbour>,
    /// Remedies, the simplest first; [`ranked_remedies`](Self::ranked_remedies) sorts them by bytes.
    pub remedies: Vec<Remedy>,
    pub(super) source: Option<Arc<candle_core::Error>>,
}

/// A device's memory at one moment, in bytes. What is not known is `None`, never 0.
///
/// ```
/// use candle_headroom::error::MemoryReading;
///
/// let mut reading = MemoryReading::default();
/// reading.limit = Some(1 << 30);
/// assert_eq!((reading.limit, reading.free), (Some(1 << 30), None));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
    /// `parameters`, `accumulated gradients`, `optimizer state`, [`ACTIVATIONS`](Self::ACTIVATIONS) or [`OTHER`](Self::OTHER).
    pub what: &'static str,
    /// Its size in bytes, computed from shapes and types; an allocator may round it up. Activations are an estimate of the policy's model.
    pub bytes: u64,
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
    /// The process ID.
    pub process: u32,
    /// The name that `ps` shows, if this process may read it.
    pub name: Option<String>,
    /// The bytes it holds, if the driver reports them.
    pub bytes: Option<u64>,
}

/// One thing that would help.
///
/// ```
/// use candle_headroom::ResourceExhausted;
/// use candle_headroom::error::{Cause, Remedy, Resource};
///
/// let mut exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::Limit);
/// let smaller = Remedy::new("a micro-batch of 8", Some(3 << 20));
/// exhausted.remedies = vec![Remedy::new("bf16", None), smaller];
/// let best = exhausted.ranked_remedies().next().unwrap();
/// assert_eq!(best.to_string(), "a micro-batch of 8 (saves about 3.0 MiB)");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Remedy {
    /// What to do.
    pub advice: Cow<'static, str>,
    /// The bytes that it would save at least, where that can be estimated.
    pub saves: Option<u64>,
}

impl Holding {
    /// Activations of the micro-batch's samples, by the policy's model.
    pub const ACTIVATIONS: &'static str = "activations (by the fit)";
    /// Memory of this process that is not the trainer's: the batch, other models, other threads.
    pub const OTHER: &'static str = "other memory of this process";

    /// `bytes` bytes of `what`.
    pub fn new(what: &'static str, bytes: u64) -> Self {
        Self { what, bytes }
    }
}

impl Neighbour {
    /// A process that holds `bytes` bytes.
    pub fn new(process: u32, name: Option<String>, bytes: Option<u64>) -> Self {
        Self {
            process,
            name,
            bytes,
        }
    }
}

impl Remedy {
    /// A piece of advice, with the bytes that it would save where that can be estimated.
    pub fn new(advice: impl Into<Cow<'static, str>>, saves: Option<u64>) -> Self {
        Self {
            advice: advice.into(),
            saves,
        }
    }
}

impl ResourceExhausted {
    /// An exhaustion of which nothing else is known.
    pub fn new(resource: Resource, cause: Cause) -> Self {
        Self {
            device: None,
            resource,
            phase: None,
            cause,
            bytes: MemoryReading::default(),
            expected_peak: None,
            micro_batch: None,
            samples: None,
            held: Vec::new(),
            neighbours: Vec::new(),
            remedies: Vec::new(),
            source: None,
        }
    }

    /// The remedies by the bytes that they save, the most first; last those without an estimate.
    ///
    /// Smaller micro-batches save what the policy's model predicts, or half of what the failed one took. A trainer adds what
    /// its optimizer could do without: other moments, another algorithm, frozen parameters.
    pub fn ranked_remedies(&self) -> impl Iterator<Item = &Remedy> {
        let mut remedies: Vec<&Remedy> = self.remedies.iter().collect();
        remedies.sort_by_key(|remedy| std::cmp::Reverse(remedy.saves));
        remedies.into_iter()
    }

    /// Bytes taken on the device outside the pool: on a GPU NVIDIA's contexts and libraries as well as other processes.
    pub(crate) fn others(&self) -> Option<u64> {
        let taken = self.bytes.total?.checked_sub(self.bytes.free?)?;
        taken.checked_sub(self.bytes.reserved?)
    }

    /// Bytes that this process uses besides what the trainer is known to hold; `None` where that is not known.
    pub(crate) fn other_use(&self) -> Option<u64> {
        let held = self
            .held
            .iter()
            .filter(|held| ![Holding::ACTIVATIONS, Holding::OTHER].contains(&held.what));
        let held = held.map(|held| held.bytes).reduce(u64::saturating_add)?;
        Some(self.bytes.in_use?.saturating_sub(held))
    }

    /// Whether the failed work may fit once the rest of the process has freed its memory, so that the limit and not the work is the reason.
    ///
    /// What was seen of the work is a lower bound: under a hard limit the refused allocation is not in the peak. Unless more was seen than fits,
    /// the rest of the process is to blame if without it the room would at least double.
    pub(crate) fn may_fit_alone(&self) -> bool {
        let bytes = &self.bytes;
        let (Some(other), Some(in_use), Some(bound)) =
            (self.other_use(), bytes.in_use, bytes.limit.or(bytes.total))
        else {
            return false;
        };
        let seen = self.expected_peak.max(bytes.peak).unwrap_or(in_use);
        match seen > bound {
            true => seen - other.min(seen) <= bound,
            false => other > 0 && other >= bound.saturating_sub(in_use),
        }
    }

    /// Adds the rest of the process to what holds the memory.
    pub(crate) fn name_other_use(&mut self) {
        if let Some(bytes) = self.other_use().filter(|&bytes| bytes > 0) {
            self.held.push(Holding::new(Holding::OTHER, bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn exhausted(in_use: u64, peak: u64, limit: u64, held: u64) -> ResourceExhausted {
        let mut exhausted = ResourceExhausted::new(Resource::HostMemory, Cause::Limit);
        let bytes = &mut exhausted.bytes;
        (bytes.in_use, bytes.peak, bytes.limit) = (Some(in_use), Some(peak), Some(limit));
        exhausted.held = vec![
            Holding::new("parameters", held),
            Holding::new(Holding::ACTIVATIONS, peak - in_use),
        ];
        exhausted
    }

    #[test]
    fn the_rest_of_the_process_is_named_where_it_is_in_the_way() {
        // A limit of 48 MiB, of which another thread holds 47; the work takes 0.5.
        let mut crowded = exhausted(47 * MIB + 1024, 48 * MIB + 1, 48 * MIB, 1024);
        assert!(crowded.may_fit_alone());
        crowded.name_other_use();
        let other = Holding::new(Holding::OTHER, 47 * MIB);
        assert_eq!(crowded.held.last(), Some(&other));
        assert_eq!(crowded.other_use(), Some(47 * MIB), "not subtracted itself");
        // Refused by a hard limit: the peak stays below it.
        assert!(exhausted(47 * MIB, 47 * MIB, 48 * MIB, 1024).may_fit_alone());
    }

    #[test]
    fn work_that_is_too_large_by_itself_is_the_reason() {
        assert!(!exhausted(MIB, 60 * MIB, 48 * MIB, 1024).may_fit_alone());
        assert!(!exhausted(20 * MIB, 20 * MIB, 48 * MIB, 20 * MIB).may_fit_alone());
        let mut unknown = exhausted(47 * MIB, 49 * MIB, 48 * MIB, 0);
        unknown.held.clear();
        let alone = unknown.may_fit_alone();
        assert!(!alone, "what the trainer holds is not known");
    }
}
