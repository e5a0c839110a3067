use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytesize::ByteSize;
use candle_core::DeviceLocation;

use super::report::{self, Holding, Neighbour};
use super::{Cause, Phase, Resource};

/// Something ran out of memory, with everything that was known about it at that moment.
///
/// It goes into a [`candle_core::Error`] by `?` and comes out again through [`ErrorExt`](crate::ErrorExt); see
/// [`Error`](crate::Error). `{}` is one line, `{:#}` the long form with every number and remedy.
///
/// ```
/// use candle_headroom::error::Resource;
/// use candle_headroom::ErrorExt;
///
/// // The text is what candle keeps of a driver's error once it has been formatted.
/// let error = candle_core::Error::msg("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")");
/// let exhausted = error.resource_exhausted().expect("an exhaustion");
/// assert_eq!(exhausted.resource, Resource::DeviceMemory);
/// assert_eq!(exhausted.bytes.requested, None); // not known, so not 0
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct ResourceExhausted {
    /// Where it happened; `None` where only an error's text was left.
    pub device: Option<DeviceLocation>,
    /// What ran out.
    pub resource: Resource,
    /// In which part of the work; `None` outside a trainer or [`process_batches`](crate::process_batches).
    pub phase: Option<Phase>,
    /// Why it ran out.
    pub cause: Cause,
    /// The memory's state when it ran out.
    pub bytes: MemoryReading,
    /// The use that the whole micro-batch would have come to by the policy's model, in bytes; `None` before there is one.
    pub expected_peak: Option<u64>,
    /// The size of the failed micro-batch, in samples.
    pub micro_batch: Option<usize>,
    /// The failed samples, as positions in the batch.
    pub samples: Option<Range<usize>>,
    /// What is known to hold the memory: the model's own, where a trainer was at work, and activations, where a policy has a model of
    /// them. What is left of the use is gradients on their way, workspaces, and whatever else the program holds.
    pub held: Vec<Holding>,
    /// Other processes on the GPU, by what they hold, the most first: asked for when a step finally fails. Empty where there are none, and
    /// where the driver does not tell, as in most containers.
    pub neighbours: Vec<Neighbour>,
    /// What would help, the simplest first; [`ranked_remedies`](Self::ranked_remedies) ranks them by bytes.
    pub remedies: Vec<Remedy>,
    pub(super) source: Option<Arc<candle_core::Error>>,
}

/// The memory's state at one moment, in bytes. What is not known is `None`, never 0.
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
    /// What the failed allocation asked for. candle's errors do not carry it.
    pub requested: Option<u64>,
    /// In use by the program.
    pub in_use: Option<u64>,
    /// Held by the program's pool, in use or not.
    pub reserved: Option<u64>,
    /// The highest use since the micro-batch began.
    pub peak: Option<u64>,
    /// The limit that was set.
    pub limit: Option<u64>,
    /// Free on the device.
    pub free: Option<u64>,
    /// The device's capacity.
    pub total: Option<u64>,
}

/// One thing that would help.
///
/// ```
/// use candle_headroom::error::Remedy;
///
/// let remedy = Remedy::new("a micro-batch of 8", Some(3 << 20));
/// assert_eq!(remedy.to_string(), "a micro-batch of 8 (saves about 3.0 MiB)");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Remedy {
    /// What to do.
    pub advice: Cow<'static, str>,
    /// What it would save at least, in bytes, where that can be estimated.
    pub saves: Option<u64>,
}

impl Remedy {
    /// A piece of advice, with the bytes it would save where that can be estimated.
    pub fn new(advice: impl Into<Cow<'static, str>>, saves: Option<u64>) -> Self {
        Self {
            advice: advice.into(),
            saves,
        }
    }
}

impl ResourceExhausted {
    /// What others held on the device, in bytes: what is taken there and not the pool's. On a GPU this is NVIDIA's own contexts and
    /// libraries as well as other processes.
    pub(crate) fn others(&self) -> Option<u64> {
        let taken = self.bytes.total?.checked_sub(self.bytes.free?)?;
        taken.checked_sub(self.bytes.reserved?)
    }

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

    /// What would help, by what it saves, the most first; last what cannot be told in bytes.
    ///
    /// Smaller micro-batches save what the policy's model says, or half of what the failed one took. A trainer adds what
    /// its optimizer could do without: other moments, another algorithm, parameters that are not trained.
    ///
    /// ```
    /// use candle_headroom::error::{Cause, Remedy, Resource};
    /// use candle_headroom::ResourceExhausted;
    ///
    /// let mut exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::Limit);
    /// exhausted.remedies = vec![Remedy::new("a", None), Remedy::new("b", Some(1)), Remedy::new("c", Some(2))];
    /// let ranked = exhausted.ranked_remedies();
    /// assert_eq!(ranked.map(|remedy| &*remedy.advice).collect::<Vec<_>>(), ["c", "b", "a"]);
    /// ```
    pub fn ranked_remedies(&self) -> impl Iterator<Item = &Remedy> {
        let mut remedies: Vec<&Remedy> = self.remedies.iter().collect();
        remedies.sort_by_key(|remedy| std::cmp::Reverse(remedy.saves));
        remedies.into_iter()
    }
}

impl fmt::Display for ResourceExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        super::rendering::note(self);
        write!(f, "out of {}", self.resource)?;
        if let Some(phase) = self.phase {
            write!(f, " in {phase}")?;
        }
        match (self.micro_batch, &self.samples) {
            (Some(size), Some(samples)) => write!(
                f,
                " of a micro-batch of {size} (samples {}..{})",
                samples.start, samples.end
            )?,
            (Some(size), None) => write!(f, " of a micro-batch of {size}")?,
            _ => {}
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
            return report::write(self, f);
        }
        match self.remedies.first() {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

/// The long form of [`Display`](fmt::Display): candle's own errors use one text for both, and `main` shows this one.
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

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.advice)?;
        match self.saves {
            Some(bytes) => write!(f, " (saves about {})", ByteSize(bytes)),
            None => Ok(()),
        }
    }
}
