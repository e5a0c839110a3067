use std::fmt;

use bytesize::ByteSize;

use super::{Sample, Source};
use crate::error::{MonitorError, Result};

/// A value that is not to be passed, and how far it must fall back before it counts as good again: between the two nothing is told, so
/// that a value that trembles does not ring at each sample.
///
/// ```
/// use candle_headroom::{ByteSize, Monitor, Threshold};
///
/// let monitor = Monitor::builder()
///     .threshold(Threshold::memory_share(0.95), |crossing| eprintln!("{crossing}"))
///     .threshold(Threshold::temperature(85), |_| {}) // `tracing` is told in any case
///     .threshold(Threshold::memory_free(ByteSize::gib(1)), |_| {})
///     .start()?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    quantity: Quantity,
    /// Passed at this value.
    over: f64,
    /// Good again at this one.
    back: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Quantity {
    MemoryShare,
    /// Counted as what is missing, so that more is worse, as with all others.
    MemoryFree,
    Temperature,
    HeldDown,
    EccErrors,
}

impl Threshold {
    /// Memory used, as a share of all there is, above 0 and at most 1. It must fall 5 hundredths below.
    pub fn memory_share(share: f64) -> Self {
        Self::new(Quantity::MemoryShare, share, share - 0.05)
    }

    /// Less than this left. A quarter more must be free again.
    pub fn memory_free(least: ByteSize) -> Self {
        let least = -(least.as_u64() as f64);
        Self::new(Quantity::MemoryFree, least, least * 1.25)
    }

    /// In degrees Celsius. It must fall by 5.
    pub fn temperature(celsius: u32) -> Self {
        let celsius = f64::from(celsius);
        Self::new(Quantity::Temperature, celsius, celsius - 5.)
    }

    /// Clocks held down by heat, by a power brake or by the hardware; see [`HeldDown::is_harmful`](super::HeldDown::is_harmful).
    pub fn held_down() -> Self {
        Self::new(Quantity::HeldDown, 1., 0.)
    }

    /// This many uncorrected memory errors more than when the monitor started. It does not fall back.
    pub fn ecc_errors(more: u64) -> Self {
        Self::new(Quantity::EccErrors, more as f64, f64::NEG_INFINITY)
    }

    fn new(quantity: Quantity, over: f64, back: f64) -> Self {
        Self {
            quantity,
            over,
            back,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let is_possible = match self.quantity {
            Quantity::MemoryShare => self.over > 0. && self.over <= 1.,
            Quantity::MemoryFree => self.over < 0.,
            Quantity::Temperature | Quantity::EccErrors => self.over >= 1.,
            Quantity::HeldDown => true,
        };
        match is_possible {
            true => Ok(()),
            false => Err(MonitorError::Threshold {
                threshold: self.to_string(),
            }
            .into()),
        }
    }

    /// `None` where the sample does not tell.
    fn value(&self, sample: &Sample, first_errors: &mut Option<u64>) -> Option<f64> {
        match self.quantity {
            Quantity::MemoryShare => {
                Some(sample.used? as f64 / sample.total.filter(|total| *total > 0)? as f64)
            }
            Quantity::MemoryFree => Some(-(sample.free? as f64)),
            Quantity::Temperature => Some(sample.temperature? as f64),
            Quantity::HeldDown => Some(f64::from(u8::from(sample.held_down?.is_harmful()))),
            Quantity::EccErrors => {
                let errors = sample.ecc_errors?;
                Some(errors.saturating_sub(*first_errors.get_or_insert(errors)) as f64)
            }
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.quantity {
            Quantity::MemoryShare => write!(f, "{:.0} % of the memory used", self.over * 100.),
            Quantity::MemoryFree => write!(
                f,
                "less than {} of memory left",
                ByteSize(-self.over as u64)
            ),
            Quantity::Temperature => write!(f, "{:.0} °C", self.over),
            Quantity::HeldDown => f.write_str("clocks held down"),
            Quantity::EccErrors => write!(f, "{:.0} uncorrected memory errors", self.over),
        }
    }
}

/// A threshold was passed, or is good again.
///
/// ```
/// use candle_headroom::Crossing;
///
/// fn ring(crossing: &Crossing<'_>) {
///     if crossing.is_over {
///         eprintln!("{crossing}"); // cuda:0 NVIDIA H100 80GB HBM3: 85 °C
///     }
/// }
/// # let _: fn(&Crossing<'_>) = ring;
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Crossing<'a> {
    /// Which.
    pub threshold: &'a Threshold,
    /// Where.
    pub source: &'a Source,
    /// What was seen.
    pub sample: &'a Sample,
    /// Passed, or good again.
    pub is_over: bool,
}

impl fmt::Display for Crossing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = if self.is_over { "" } else { " no more" };
        write!(f, "{}: {}{ended}", self.source, self.threshold)
    }
}

pub(super) type Ring = Box<dyn FnMut(&Crossing<'_>) + Send>;

/// A threshold while it is watched.
pub(super) struct Watched {
    threshold: Threshold,
    ring: Option<Ring>,
    /// For each source: whether it is passed, and the errors seen first.
    states: Vec<(bool, Option<u64>)>,
}

impl Watched {
    pub(super) fn new(threshold: Threshold, ring: Ring, sources: usize) -> Self {
        Self {
            threshold,
            ring: Some(ring),
            states: vec![(false, None); sources],
        }
    }

    pub(super) fn see(&mut self, source: &Source, sample: &Sample) {
        let Some((is_over, first_errors)) = self.states.get_mut(sample.source) else {
            return;
        };
        let Some(value) = self.threshold.value(sample, first_errors) else {
            return;
        };
        let now = match *is_over {
            true => value > self.threshold.back,
            false => value >= self.threshold.over,
        };
        if now == *is_over {
            return;
        }
        *is_over = now;
        let crossing = Crossing {
            threshold: &self.threshold,
            source,
            sample,
            is_over: now,
        };
        match now {
            true => tracing::warn!("{crossing}"),
            false => tracing::info!("{crossing}"),
        }
        super::keeper::guard(&mut self.ring, |ring| ring(&crossing));
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.threshold.fmt(f)
    }
}
