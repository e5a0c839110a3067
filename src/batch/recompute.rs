use std::fmt;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use super::speed::Speed;

/// Whether a trainer recomputes the regions that a model marks with [`nn::recompute`](crate::nn::recompute()).
///
/// Every choice gives the same update; on the CPU and with the same micro-batches the same bits. A model without such regions needs none.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom::batch::Recompute;
/// use candle_headroom::{AdamW, AdaptiveTrainer};
/// use candle_nn::{VarBuilder, VarMap, linear};
///
/// let varmap = VarMap::new();
/// linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let optimizer = AdamW::builder(&varmap).build()?;
/// let trainer = AdaptiveTrainer::builder(optimizer).recompute(Recompute::Always).build()?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Recompute {
    /// Regions are kept, like other layers.
    Never,
    /// Regions are recomputed.
    Always,
    /// Regions are kept, and recomputed only if one sample does not fit otherwise.
    ///
    /// [`Predictive`](crate::Predictive) predicts that where the free memory is known, and keeps regions again once there is
    /// more of it, or to try that again after many micro-batches. With other policies, and where memory is not measured, regions
    /// are kept until the smallest micro-batch fails, and recomputed from then on.
    ///
    /// Where recomputation lets much larger micro-batches fit, [`Always`](Self::Always) may be faster:
    /// [`Measured`](Self::Measured) compares.
    #[default]
    Auto,
    /// The faster of both: the first four batches of each shape run with regions kept and recomputed in turn, and are timed. Batches have
    /// the same shape if the [costs](crate::batch::Extent::cost) of their samples have as many binary digits. Where one sample
    /// does not fit otherwise, regions are recomputed as with [`Auto`](Self::Auto).
    ///
    /// The times decide, so that two runs may differ within rounding, and a resumed run compares again. At the end of each batch that is timed
    /// the device is waited for.
    Measured,
}

/// What became of a micro-batch's marked regions.
///
/// ```
/// use candle_headroom::Predictive;
/// use candle_headroom::batch::{BatchPolicy, Completed, Extent, Regions};
///
/// let mut policy = Predictive::default();
/// policy.begin(&Extent::new(8, 8));
/// let mut completed = Completed::new(8);
/// completed.regions = Regions::Kept;
/// policy.succeeded(&completed);
/// assert!(policy.plan().is_some_and(|plan| plan.regions.is_some())); // it knows of them now
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Regions {
    /// None has been seen.
    #[default]
    None,
    /// They were kept.
    Kept,
    /// They were recomputed in the backward pass.
    Recomputed,
}

/// Whether a policy recomputes marked regions, and why.
///
/// ```
/// use candle_headroom::Predictive;
/// use candle_headroom::batch::{BatchPolicy, Completed, Extent, Regions};
///
/// let mut policy = Predictive::default();
/// policy.begin(&Extent::new(8, 8));
/// let mut completed = Completed::new(8);
/// completed.regions = Regions::Kept;
/// policy.succeeded(&completed);
/// let regions = policy.plan().and_then(|plan| plan.regions).expect("a model with regions");
/// assert_eq!(regions.to_string(), "regions kept: one sample fits without");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Recomputing {
    /// Whether they are recomputed.
    pub is_on: bool,
    /// Why.
    pub reason: RecomputeReason,
}

/// Why a policy recomputes marked regions, or keeps them.
///
/// ```
/// use candle_headroom::Predictive;
/// use candle_headroom::batch::{BatchPolicy, Completed, Extent, Recompute, RecomputeReason, Regions};
///
/// let mut policy = Predictive::default();
/// policy.set_recompute(Recompute::Always);
/// policy.begin(&Extent::new(8, 8));
/// let mut completed = Completed::new(8);
/// completed.regions = Regions::Recomputed;
/// policy.succeeded(&completed);
/// let regions = policy.plan().and_then(|plan| plan.regions).expect("a model with regions");
/// assert_eq!((regions.is_on, regions.reason), (true, RecomputeReason::Asked));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RecomputeReason {
    /// The trainer was built with [`Recompute::Always`] or [`Recompute::Never`], or [`Recompute::Measured`] recomputes because that is faster, or
    /// to compare it.
    Asked,
    /// One sample fits without.
    NoNeed,
    /// One sample does not fit otherwise.
    OneSample,
}

impl fmt::Display for Recomputing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_on { "recomputed" } else { "kept" };
        let why = match self.reason {
            RecomputeReason::Asked => "as asked",
            RecomputeReason::NoNeed => "one sample fits without",
            RecomputeReason::OneSample => "one sample does not fit otherwise",
        };
        write!(f, "regions {what}: {why}")
    }
}

/// What a policy has learned, and why it uses its size. `Display` writes one line.
///
/// ```
/// use candle_headroom::Predictive;
/// use candle_headroom::batch::{BatchPolicy, Completed, Reason};
///
/// let mut policy = Predictive::default();
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
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Plan {
    /// Bytes that a micro-batch takes besides its samples.
    pub base: Option<u64>,
    /// Bytes that each sample takes.
    pub each: Option<u64>,
    /// Bytes that limit and device leave for a micro-batch; `None` if nothing bounds it.
    pub room: Option<u64>,
    /// The largest micro-batch that should fit, in samples.
    pub fits: Option<usize>,
    /// The largest micro-batch in use, in samples; `None` for the whole batch.
    pub using: Option<usize>,
    /// Why it is not larger.
    pub reason: Reason,
    /// Whether marked regions are recomputed, and why; `None` for a model without them, or if a policy does not choose.
    pub regions: Option<Recomputing>,
    /// The size with which batches have been the fastest so far, if the last batch had another one. Nothing is decided by it: a policy can be
    /// bounded to a smaller one ([`at_most`](super::PredictiveBuilder::at_most)).
    pub faster: Option<Speed>,
}

/// Why a policy does not use larger micro-batches.
///
/// ```
/// use candle_headroom::batch::Reason;
///
/// assert_eq!(Reason::Room.to_string(), "as much as fits");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// No bound is known.
    Unbounded,
    /// Nothing has been measured yet.
    Unmeasured,
    /// There is no more room.
    Room,
    /// A larger one did not fit; it is tried again later.
    Failed,
    /// The caller allows no larger one.
    Allowed,
}

impl Plan {
    /// Creates a plan that states no numbers: the whole batch is used, for `reason`.
    ///
    /// ```
    /// use candle_headroom::batch::{Plan, Reason};
    ///
    /// let mut plan = Plan::new(Reason::Failed); // of a policy of your own
    /// plan.using = Some(16);
    /// assert_eq!(plan.to_string(), "using 16: a larger one has not fitted");
    /// ```
    pub fn new(reason: Reason) -> Self {
        Self {
            base: None,
            each: None,
            room: None,
            fits: None,
            using: None,
            reason,
            regions: None,
            faster: None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unbounded => "nothing bounds it",
            Self::Unmeasured => "nothing measured yet",
            Self::Room => "as much as fits",
            Self::Failed => "a larger one has not fitted",
            Self::Allowed => "no larger one is allowed",
        })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(base), Some(each)) = (self.base, self.each) {
            write!(f, "base {}, {} a sample, ", ByteSize(base), ByteSize(each))?;
        }
        // The size in use has less of a margin than a larger one needs.
        if let Some(fits) = self.fits.filter(|fits| self.using <= Some(*fits)) {
            write!(f, "room for {fits}, ")?;
        }
        match self.using {
            Some(using) => write!(f, "using {using}: {}", self.reason)?,
            None => write!(f, "using the whole batch: {}", self.reason)?,
        }
        if let Some(regions) = self.regions.filter(|regions| regions.is_on) {
            write!(f, ", {regions}")?;
        }
        match self.faster {
            Some(Speed {
                size,
                samples_per_second: rate,
            }) => write!(
                f,
                "; the fastest so far was {size}, {rate:.1} samples a second"
            ),
            None => Ok(()),
        }
    }
}
