use std::fmt;
use std::time::Duration;

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
    /// And after so long.
    calm: Duration,
}

/// How long clocks must have been left alone: they go down and up many times a second.
const CALM: Duration = Duration::from_secs(5);

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
    /// Memory used, as a share of all there is, above 0 and at most 1. It must fall 5 hundredths below, or to half of a share that is less
    /// than a tenth.
    pub fn memory_share(share: f64) -> Self {
        Self::new(Quantity::MemoryShare, share, (share - 0.05).max(share / 2.))
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

    /// Clocks held down by heat, by a power brake or by the hardware; see [`HeldDown::is_harmful`](super::HeldDown::is_harmful). No sample
    /// must have shown any for 5 seconds.
    pub fn held_down() -> Self {
        Self {
            calm: CALM,
            ..Self::new(Quantity::HeldDown, 1., 0.)
        }
    }

    /// This many uncorrected memory errors more than when the monitor started, or than 0 after the counter began anew, as it does when
    /// the GPU is reset or its driver is loaded again. It does not fall back.
    pub fn ecc_errors(more: u64) -> Self {
        Self::new(Quantity::EccErrors, more as f64, f64::NEG_INFINITY)
    }

    fn new(quantity: Quantity, over: f64, back: f64) -> Self {
        Self {
            quantity,
            over,
            back,
            calm: Duration::ZERO,
        }
    }

    /// Whether a value counts as over it, by whether the one before did.
    pub(super) fn is_over(&self, value: f64, was_over: bool) -> bool {
        match was_over {
            true => value > self.back,
            false => value >= self.over,
        }
    }

    /// How long it must not have been over it before it is good again.
    pub(super) fn calm(&self) -> Duration {
        self.calm
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
    pub(super) fn value(&self, sample: &Sample, first_errors: &mut Option<u64>) -> Option<f64> {
        match self.quantity {
            Quantity::MemoryShare => {
                Some(sample.used? as f64 / sample.total.filter(|total| *total > 0)? as f64)
            }
            Quantity::MemoryFree => Some(-(sample.free? as f64)),
            Quantity::Temperature => Some(sample.temperature? as f64),
            Quantity::HeldDown => Some(f64::from(u8::from(sample.held_down?.is_harmful()))),
            Quantity::EccErrors => {
                let errors = sample.ecc_errors?;
                let first = first_errors.get_or_insert(errors);
                if errors < *first {
                    *first = 0;
                }
                Some((errors - *first) as f64)
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
