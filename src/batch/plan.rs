use std::fmt;

use bytesize::ByteSize;

/// What a policy believes, and why it uses the size that it uses. `{}` is one line.
///
/// ```
/// use candle_headroom::batch::{BatchPolicy, Completed, Reason};
/// use candle_headroom::Predictive;
///
/// let mut policy = Predictive::new();
/// for size in [1, 1, 4, 8] {
///     let mut completed = Completed::new(size);
///     completed.before = Some(0);
///     completed.peak = Some(100 + 10 * size as u64);
///     completed.limit = Some(500);
///     policy.succeeded(&completed);
/// }
/// let plan = policy.plan().expect("a policy that predicts");
/// assert_eq!((plan.base, plan.each, plan.reason), (Some(100), Some(10), Reason::Room));
/// assert!(plan.to_string().starts_with("base 100 B, 10 B a sample, room for "));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Plan {
    /// What a micro-batch takes besides its samples, in bytes.
    pub base: Option<u64>,
    /// What each sample takes, in bytes.
    pub each: Option<u64>,
    /// What each sample takes until the forward pass is over, in bytes.
    pub each_forward: Option<u64>,
    /// Bytes that a micro-batch may take: what limit and device leave; `None` where nothing bounds it.
    pub room: Option<u64>,
    /// The largest micro-batch for which there is room, in samples, as far as what was seen tells.
    pub fits: Option<usize>,
    /// The largest micro-batch in use, in samples; `None` for the whole batch.
    pub using: Option<usize>,
    /// Why not a larger one.
    pub reason: Reason,
}

/// Why a policy does not use larger micro-batches.
///
/// ```
/// use candle_headroom::batch::Reason;
///
/// assert_eq!(Reason::Speed.to_string(), "throughput flat above");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// Nothing is known that bounds it.
    Unbounded,
    /// Nothing has been measured yet.
    Unmeasured,
    /// As much as there is room for.
    Room,
    /// A larger one has not fitted; it is tried again later.
    Failed,
    /// Larger ones are not faster.
    Speed,
    /// A smaller one is being timed.
    Timing,
    /// No larger one was allowed.
    Allowed,
}

impl Plan {
    /// Creates a plan that states no numbers: the whole batch is used, for `reason`.
    pub fn new(reason: Reason) -> Self {
        Self {
            base: None,
            each: None,
            each_forward: None,
            room: None,
            fits: None,
            using: None,
            reason,
        }
    }

    /// Sets [`base`](Self::base), in bytes.
    pub fn base(mut self, bytes: u64) -> Self {
        self.base = Some(bytes);
        self
    }

    /// Sets [`each`](Self::each), in bytes.
    pub fn each(mut self, bytes: u64) -> Self {
        self.each = Some(bytes);
        self
    }

    /// Sets [`each_forward`](Self::each_forward), in bytes.
    pub fn each_forward(mut self, bytes: u64) -> Self {
        self.each_forward = Some(bytes);
        self
    }

    /// Sets [`room`](Self::room), in bytes.
    pub fn room(mut self, bytes: u64) -> Self {
        self.room = Some(bytes);
        self
    }

    /// Sets [`fits`](Self::fits), in samples.
    pub fn fits(mut self, samples: usize) -> Self {
        self.fits = Some(samples);
        self
    }

    /// Sets [`using`](Self::using), in samples.
    pub fn using(mut self, samples: usize) -> Self {
        self.using = Some(samples);
        self
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unbounded => "nothing bounds it",
            Self::Unmeasured => "nothing measured yet",
            Self::Room => "as much as fits",
            Self::Failed => "a larger one has not fitted",
            Self::Speed => "throughput flat above",
            Self::Timing => "a smaller one is being timed",
            Self::Allowed => "no larger one is allowed",
        })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(base), Some(each)) = (self.base, self.each) {
            write!(f, "base {}, {} a sample, ", ByteSize(base), ByteSize(each))?;
        }
        if let Some(fits) = self.fits {
            write!(f, "room for {fits}, ")?;
        }
        match self.using {
            Some(using) => write!(f, "using {using}: {}", self.reason),
            None => write!(f, "using the whole batch: {}", self.reason),
        }
    }
}
