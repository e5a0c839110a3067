use std::fmt;
use std::time::Duration;

use bytesize::ByteSize;

use super::sample::Sample;
use super::source::Source;
use crate::error::MonitorError;

/// A limit for a value, and how far the value must recover after crossing it before it can cross it again.
///
/// ```
/// use candle_headroom::ByteSize;
/// use candle_headroom::monitor::Threshold;
///
/// assert_eq!(Threshold::temperature(85).to_string(), "85 °C");
/// assert_eq!(Threshold::memory_free(ByteSize::gib(1)).to_string(), "less than 1.0 GiB of memory left");
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    quantity: Quantity,
    /// Crossed at this value or above.
    over: f64,
    /// Recovered at this value or below.
    back: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Quantity {
    MemoryShare,
    /// Negative, so that more is worse, as for the others.
    MemoryFree,
    Temperature,
    HeldDown,
    EccErrors,
}

impl Threshold {
    /// Used memory as a share of the total, in (0, 1]. It recovers 0.05 below, or at half of a share under 0.1.
    pub fn memory_share(share: f64) -> Self {
        Self::new(Quantity::MemoryShare, share, (share - 0.05).max(share / 2.))
    }

    /// Less free memory than `least`. It recovers when a quarter more is free.
    pub fn memory_free(least: ByteSize) -> Self {
        let least = -(least.as_u64() as f64);
        Self::new(Quantity::MemoryFree, least, least * 1.25)
    }

    /// Temperature in degrees Celsius. It recovers 5 degrees below.
    pub fn temperature(celsius: u32) -> Self {
        let celsius = f64::from(celsius);
        Self::new(Quantity::Temperature, celsius, celsius - 5.)
    }

    /// Clocks held down by heat, a power brake or the hardware; see [`HeldDown::is_harmful`](super::HeldDown::is_harmful). It recovers
    /// when they have not been held down for 5 seconds.
    pub fn held_down() -> Self {
        Self::new(Quantity::HeldDown, 1., 0.)
    }

    /// This many more uncorrected memory errors than at the monitor's start. A GPU's reset or a reload of its driver sets the counter
    /// to 0; errors then count from 0. It never recovers.
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

    pub(super) fn is_over(&self, value: f64, was_over: bool) -> bool {
        match was_over {
            true => value > self.back,
            false => value >= self.over,
        }
    }

    /// How long the value must have recovered before it counts. Clocks go down and up many times a second.
    pub(super) fn calm(&self) -> Duration {
        match self.quantity {
            Quantity::HeldDown => Duration::from_secs(5),
            _ => Duration::ZERO,
        }
    }

    pub(super) fn check(&self) -> Result<(), MonitorError> {
        let is_possible = match self.quantity {
            Quantity::MemoryShare => self.over > 0. && self.over <= 1.,
            Quantity::MemoryFree => self.over < 0.,
            Quantity::Temperature | Quantity::EccErrors => self.over >= 1.,
            Quantity::HeldDown => true,
        };
        let threshold = self.to_string();
        (is_possible.then_some(())).ok_or(MonitorError::Threshold { threshold })
    }

    /// The sample's value of this quantity, or `None` if it is not known.
    pub(super) fn value(&self, sample: &Sample, first_errors: &mut Option<u64>) -> Option<f64> {
        Some(match self.quantity {
            Quantity::MemoryShare => {
                sample.used? as f64 / sample.total.filter(|total| *total > 0)? as f64
            }
            Quantity::MemoryFree => -(sample.free? as f64),
            Quantity::Temperature => sample.temperature? as f64,
            Quantity::HeldDown => f64::from(u8::from(sample.held_down?.is_harmful())),
            Quantity::EccErrors => {
                let errors = sample.ecc_errors?;
                let first = first_errors.get_or_insert(errors);
                if errors < *first {
                    *first = 0;
                }
                (errors - *first) as f64
            }
        })
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = self.over;
        match self.quantity {
            Quantity::MemoryShare => write!(f, "{:.0} % of the memory used", over * 100.),
            Quantity::MemoryFree => {
                write!(f, "less than {} of memory left", ByteSize(-over as u64))
            }
            Quantity::Temperature => write!(f, "{over:.0} °C"),
            Quantity::HeldDown => f.write_str("clocks held down"),
            Quantity::EccErrors => write!(f, "{over:.0} uncorrected memory errors"),
        }
    }
}

/// A source crossed a threshold, or has recovered.
///
/// ```
/// use candle_headroom::Monitor;
/// use candle_headroom::monitor::Threshold;
///
/// let monitor = Monitor::builder()
///     .threshold(Threshold::temperature(85), |crossing| eprintln!("{crossing}")) // cuda:0 NVIDIA H100: 85 °C
///     .start()?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Crossing<'a> {
    /// The threshold.
    pub threshold: &'a Threshold,
    /// The source.
    pub source: &'a Source,
    /// The sample that crossed it.
    pub sample: &'a Sample,
    /// `true` if it was crossed, `false` if the source has recovered.
    pub is_over: bool,
}

impl fmt::Display for Crossing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recovered = if self.is_over { "" } else { " (recovered)" };
        write!(f, "{}: {}{recovered}", self.source, self.threshold)
    }
}
