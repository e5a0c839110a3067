use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytesize::ByteSize;

use super::HeldDown;

/// What a [`Monitor`](super::Monitor) saw of one GPU, or of the host, at one moment. What the driver does not tell is `None`, shown as
/// «n/a», never 0.
///
/// ```
/// use candle_headroom::Monitor;
///
/// let monitor = Monitor::builder().start()?;
/// for sample in monitor.latest() {
///     println!("{sample}"); // 12.4 GiB of 23.5 GiB used, this process 310.0 MiB, busy n/a, …
/// }
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Sample {
    /// Of which of [`Monitor::sources`](super::Monitor::sources).
    pub source: usize,
    /// When it was taken, by the machine's clock, which people and services set at will.
    pub taken: SystemTime,
    /// The same since the monitor started, by a clock that only goes forward.
    pub at: Duration,
    /// How long taking it took; for a call that hangs, how long it has been waited for.
    pub took: Duration,
    /// Whether the source answers.
    pub health: Health,
    /// Memory in all, in bytes; the host's is read twice a second at most.
    pub total: Option<u64>,
    /// Memory taken, by whomever, in bytes; on the host what cannot be had any more.
    pub used: Option<u64>,
    /// Memory left, in bytes; on the host what can be had without swapping.
    pub free: Option<u64>,
    /// What this process holds, in bytes: on the host its resident memory, read twice a second at most. On a GPU `None` as long as the
    /// driver does not list this process, and in most containers, where the driver lists processes by the host's numbers.
    pub process: Option<u64>,
    /// What other processes hold on the GPU, in bytes. `None` in such containers, where they cannot be told apart, and where the driver
    /// does not tell what one of them holds.
    pub others: Option<u64>,
    /// The share of time in which a kernel ran, in percent.
    pub utilisation: Option<u64>,
    /// The share of time in which the GPU's memory was read or written, in percent.
    pub memory_utilisation: Option<u64>,
    /// In degrees Celsius.
    pub temperature: Option<u64>,
    /// In milliwatts.
    pub power: Option<u64>,
    /// The most it may draw, in milliwatts; asked for once a second.
    pub power_limit: Option<u64>,
    /// The clock of its multiprocessors, in MHz.
    pub clock: Option<u64>,
    /// The clock of its memory, in MHz.
    pub memory_clock: Option<u64>,
    /// Why the clocks are lower than they could be.
    pub held_down: Option<HeldDown>,
    /// Traffic to the GPU over PCIe, in bytes a second, as NVML measures it for 20 ms once a second. Its KB are taken as 1,000 bytes.
    pub pcie_received: Option<u64>,
    /// Traffic from the GPU, likewise.
    pub pcie_sent: Option<u64>,
    /// Memory errors that could not be corrected, since the driver was loaded; asked for once a second.
    pub ecc_errors: Option<u64>,
}

/// Whether a source answers.
///
/// ```
/// use candle_headroom::Health;
///
/// assert_eq!(Health::Lost.to_string(), "lost");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Health {
    /// It answers.
    Good,
    /// A call has not come back; nothing else is asked until it does.
    Hanging,
    /// It has fallen off the bus, was unplugged, its driver is gone, or every call for it fails. The monitor looks for it again
    /// from time to time.
    Lost,
    /// It answers that it must be reset.
    NeedsReset,
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Good => "good",
            Self::Hanging => "hanging",
            Self::Lost => "lost",
            Self::NeedsReset => "needs reset",
        })
    }
}

/// How many numbers a sample holds beside its source, time and health.
pub(super) const VALUES: usize = 16;

impl Sample {
    /// Nothing known.
    pub(super) fn blank(source: usize, taken: SystemTime, at: Duration) -> Self {
        Self {
            source,
            taken,
            at,
            took: Duration::ZERO,
            health: Health::Good,
            total: None,
            used: None,
            free: None,
            process: None,
            others: None,
            utilisation: None,
            memory_utilisation: None,
            temperature: None,
            power: None,
            power_limit: None,
            clock: None,
            memory_clock: None,
            held_down: None,
            pcie_received: None,
            pcie_sent: None,
            ecc_errors: None,
        }
    }

    /// The numbers by their names, for everything that writes them down.
    pub(super) fn values(&self) -> [(&'static str, Option<u64>); VALUES] {
        [
            ("total_bytes", self.total),
            ("used_bytes", self.used),
            ("free_bytes", self.free),
            ("process_bytes", self.process),
            ("others_bytes", self.others),
            ("utilisation_percent", self.utilisation),
            ("memory_utilisation_percent", self.memory_utilisation),
            ("temperature_celsius", self.temperature),
            ("power_milliwatts", self.power),
            ("power_limit_milliwatts", self.power_limit),
            ("clock_mhz", self.clock),
            ("memory_clock_mhz", self.memory_clock),
            ("held_down_bits", self.held_down.map(|held| held.bits())),
            ("pcie_received_bytes_per_second", self.pcie_received),
            ("pcie_sent_bytes_per_second", self.pcie_sent),
            ("ecc_errors", self.ecc_errors),
        ]
    }

    /// Milliseconds since 1970, by the machine's clock; 0 before.
    pub(crate) fn unix_milliseconds(&self) -> u64 {
        let since = self.taken.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// One line, without the source's name.
impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |bytes: Option<u64>| Shown(bytes.map(ByteSize), "");
        match self.health {
            Health::Good => {}
            health => write!(f, "{health}, ")?,
        }
        write!(f, "{} of {} used", bytes(self.used), bytes(self.total))?;
        write!(f, ", this process {}", bytes(self.process))?;
        write!(f, ", busy {}", Shown(self.utilisation, " %"))?;
        write!(f, ", {}", Shown(self.temperature, " °C"))?;
        let watts = |milliwatts: Option<u64>| milliwatts.map(|power| power / 1000);
        write!(f, ", {}", Shown(watts(self.power), " W"))?;
        write!(f, " of {}", Shown(watts(self.power_limit), " W"))?;
        write!(f, ", {}", Shown(self.clock, " MHz"))?;
        match self.held_down {
            Some(held) if held.is_harmful() => write!(f, ", held down by {held}"),
            _ => Ok(()),
        }
    }
}

/// A value with its unit, or «n/a».
struct Shown<T>(Option<T>, &'static str);

impl<T: fmt::Display> fmt::Display for Shown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => write!(f, "{value}{}", self.1),
            None => f.write_str("n/a"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_shown_so() {
        let mut sample = Sample::blank(0, UNIX_EPOCH, Duration::ZERO);
        assert_eq!(
            sample.to_string(),
            "n/a of n/a used, this process n/a, busy n/a, n/a, n/a of n/a, n/a"
        );
        sample.health = Health::Lost;
        sample.used = Some(0);
        assert!(sample.to_string().starts_with("lost, 0 B of n/a used"));
    }
}
