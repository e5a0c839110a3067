use std::fmt;
use std::io;
use std::time::Duration;

use bytesize::ByteSize;

use super::sample::Sample;
use super::source::Source;

/// A limit for a value. After a value has crossed it, it must recover by some distance before it can cross it again.
///
/// ```
/// use candle_headroom::ByteSize;
/// use candle_headroom::monitor::Threshold;
///
/// assert_eq!(Threshold::Temperature(85).to_string(), "85 °C");
/// assert_eq!(Threshold::MemoryFree(ByteSize::gib(1)).to_string(), "less than 1.0 GiB of memory left");
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Threshold {
    /// Used memory as a share of the total, in (0, 1]. It recovers 0.05 below, or at half of a share under 0.1.
    MemoryShare(f64),
    /// Less free memory than this. It recovers when a quarter more is free.
    MemoryFree(ByteSize),
    /// Temperature in degrees Celsius. It recovers 5 degrees below.
    Temperature(u32),
    /// Clocks held down by heat, a power brake or the hardware; see [`HeldDown::is_harmful`](super::HeldDown::is_harmful). It recovers
    /// when they have not been held down for 5 seconds, because clocks go down and up many times a second.
    HeldDown,
}

/// The state of one source.
#[derive(Default)]
struct State {
    is_over: bool,
    /// When a sample was last over the threshold.
    last_over: Duration,
}

impl Threshold {
    /// Whether a source can cross the threshold and not be beyond it from the start.
    pub(super) fn is_possible(&self) -> bool {
        match *self {
            Self::MemoryShare(share) => share > 0. && share <= 1.,
            Self::MemoryFree(least) => least.as_u64() > 0,
            Self::Temperature(celsius) => celsius > 0,
            Self::HeldDown => true,
        }
    }

    /// Whether the source crosses the threshold with this sample or recovers; `None` if neither, or if the value is not known.
    fn crossing(&self, sample: &Sample, state: &mut State) -> Option<bool> {
        // The threshold is crossed at `over` or above, and the value has recovered at `back` or below.
        let (value, over, back) = match *self {
            Self::MemoryShare(share) => {
                let total = sample.total.filter(|total| *total > 0)?;
                let back = (share - 0.05).max(share / 2.);
                (sample.used? as f64 / total as f64, share, back)
            }
            Self::MemoryFree(least) => {
                // Negative, so that more is worse, as for the others.
                let least = -(least.as_u64() as f64);
                (-(sample.free? as f64), least, least * 1.25)
            }
            Self::Temperature(celsius) => {
                let celsius = f64::from(celsius);
                (sample.temperature? as f64, celsius, celsius - 5.)
            }
            Self::HeldDown => (f64::from(sample.held_down?.is_harmful()), 1., 0.),
        };
        let is_over = value >= over || (state.is_over && value > back);
        if is_over {
            state.last_over = sample.at;
        }
        let calm = Duration::from_secs(if *self == Self::HeldDown { 5 } else { 0 });
        let calm_for = sample.at.saturating_sub(state.last_over);
        if is_over == state.is_over || (!is_over && calm_for < calm) {
            return None;
        }
        state.is_over = is_over;
        Some(is_over)
    }

    /// A receiver of samples that calls `ring` when a source crosses the threshold and when it has recovered.
    pub(super) fn watch(
        self,
        mut ring: impl FnMut(&Crossing<'_>) + Send + 'static,
    ) -> impl FnMut(&Source, &Sample) -> io::Result<()> + Send + 'static {
        let mut states = Vec::<State>::new();
        move |source, sample| {
            let count = states.len().max(sample.source + 1);
            states.resize_with(count, State::default);
            let state = states.get_mut(sample.source);
            let Some(is_over) = state.and_then(|state| self.crossing(sample, state)) else {
                return Ok(());
            };
            let crossing = Crossing {
                threshold: &self,
                source,
                sample,
                is_over,
            };
            match is_over {
                true => tracing::warn!("{crossing}"),
                false => tracing::info!("{crossing}"),
            }
            ring(&crossing);
            Ok(())
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MemoryShare(share) => write!(f, "{:.0} % of the memory used", share * 100.),
            Self::MemoryFree(least) => write!(f, "less than {least} of memory left"),
            Self::Temperature(celsius) => write!(f, "{celsius} °C"),
            Self::HeldDown => f.write_str("clocks held down"),
        }
    }
}

/// A source crossed a threshold, or has recovered. Displayed as `cuda:0 NVIDIA H100: 85 °C`.
///
/// ```
/// use std::sync::mpsc;
///
/// use candle_headroom::monitor::{Crossing, Threshold};
/// use candle_headroom::{ByteSize, Monitor};
///
/// let (alarm, alarms) = mpsc::channel();
/// let ring = move |crossing: &Crossing<'_>| {
///     let _ = alarm.send((crossing.source.name.clone(), crossing.is_over));
/// };
/// let less = Threshold::MemoryFree(ByteSize::pib(2)); // on any machine
/// let monitor = Monitor::builder().threshold(less, ring).start()?;
/// assert!(alarms.try_iter().any(|alarm| alarm == ("host".to_owned(), true)));
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
