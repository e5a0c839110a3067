use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytesize::ByteSize;

use super::held_down::HeldDown;

/// The state of one GPU, or of the host, at one time. A value that is not known is `None`, never 0.
///
/// Displayed as one line without the source's name: `12.4 GiB of 23.5 GiB used, this process 310.0 MiB, busy n/a, …`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Sample {
    /// The index in [`Monitor::sources`](super::Monitor::sources).
    pub source: usize,
    /// When it was taken, by the machine's clock, which can be set back.
    pub taken: SystemTime,
    /// When it was taken, as time since the monitor started, which never goes back.
    pub at: Duration,
    /// How long taking it took; for a call that hangs, how long it has been running.
    pub took: Duration,
    /// Whether the source answers.
    pub health: Health,
    /// Total memory, in bytes. The host's memory is read at most twice a second.
    pub total: Option<u64>,
    /// Memory used by all processes, in bytes; on the host, memory that is not available.
    pub used: Option<u64>,
    /// Free memory, in bytes; on the host, memory available without swapping.
    pub free: Option<u64>,
    /// Memory of this process, in bytes: on the host its resident memory, read at most twice a second. On a GPU `None` until the driver
    /// lists this process, and in most containers, where the driver lists the host's process numbers.
    pub process: Option<u64>,
    /// Memory of other processes on the GPU, in bytes. `None` in such containers, and where the driver does not report it for one of
    /// them.
    pub others: Option<u64>,
    /// The share of time in which a kernel ran, in percent.
    pub utilisation: Option<u64>,
    /// The share of time in which the GPU's memory was read or written, in percent.
    pub memory_utilisation: Option<u64>,
    /// Temperature in degrees Celsius.
    pub temperature: Option<u64>,
    /// Power draw in milliwatts.
    pub power: Option<u64>,
    /// Power limit in milliwatts, read once a second.
    pub power_limit: Option<u64>,
    /// Clock of the multiprocessors in MHz.
    pub clock: Option<u64>,
    /// Clock of the memory in MHz.
    pub memory_clock: Option<u64>,
    /// Why the clocks are lower than they could be.
    pub held_down: Option<HeldDown>,
    /// PCIe traffic to the GPU in bytes per second. NVML measures it for 20 ms, once a second; its KB are taken as 1,000 bytes.
    pub pcie_received: Option<u64>,
    /// PCIe traffic from the GPU, likewise.
    pub pcie_sent: Option<u64>,
    /// Uncorrected memory errors since the driver was loaded, read once a second.
    pub ecc_errors: Option<u64>,
}

/// Whether a source answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Health {
    /// It answers.
    Good,
    /// A call has not returned. The monitor asks nothing else of this source until it does.
    Hanging,
    /// It fell off the bus, was unplugged, lost its driver, or fails every call. The monitor looks for it again every two seconds.
    Lost,
    /// It reports that it must be reset.
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

/// Lists the values with their names in files and metrics.
macro_rules! values {
    ($($name:literal: $field:ident $(as $number:path)?,)*) => {
        pub(super) const NAMES: [&str; [$($name),*].len()] = [$($name),*];

        impl Sample {
            /// A sample with no known value.
            pub(super) fn blank(source: usize, taken: SystemTime, at: Duration) -> Self {
                let (took, health) = (Duration::ZERO, Health::Good);
                Self { source, taken, at, took, health, $($field: None),* }
            }

            /// The values in the order of `NAMES`.
            pub(super) fn values(&self) -> [Option<u64>; NAMES.len()] {
                [$(self.$field$(.map($number))?),*]
            }
        }
    };
}

values! {
    "total_bytes": total,
    "used_bytes": used,
    "free_bytes": free,
    "process_bytes": process,
    "others_bytes": others,
    "utilisation_percent": utilisation,
    "memory_utilisation_percent": memory_utilisation,
    "temperature_celsius": temperature,
    "power_milliwatts": power,
    "power_limit_milliwatts": power_limit,
    "clock_mhz": clock,
    "memory_clock_mhz": memory_clock,
    "held_down_bits": held_down as HeldDown::bits,
    "pcie_received_bytes_per_second": pcie_received,
    "pcie_sent_bytes_per_second": pcie_sent,
    "ecc_errors": ecc_errors,
}

impl Sample {
    /// Milliseconds from 1970 to `taken`; 0 if the machine's clock shows an earlier time.
    pub(super) fn unix_milliseconds(&self) -> u64 {
        let since = self.taken.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// `took` in microseconds.
    pub(super) fn microseconds(&self) -> u64 {
        u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with_unit = |value: Option<u64>, unit: &str| match value {
            Some(value) => format!("{value}{unit}"),
            None => "n/a".to_owned(),
        };
        let bytes = |bytes: Option<u64>| match bytes {
            Some(bytes) => ByteSize(bytes).to_string(),
            None => "n/a".to_owned(),
        };
        let watts = |milliwatts: Option<u64>| with_unit(milliwatts.map(|power| power / 1000), " W");
        match self.health {
            Health::Good => {}
            health => write!(f, "{health}, ")?,
        }
        write!(
            f,
            "{} of {} used, this process {}, busy {}, {}, {} of {}, {}",
            bytes(self.used),
            bytes(self.total),
            bytes(self.process),
            with_unit(self.utilisation, " %"),
            with_unit(self.temperature, " °C"),
            watts(self.power),
            watts(self.power_limit),
            with_unit(self.clock, " MHz"),
        )?;
        match self.held_down {
            Some(held) if held.is_harmful() => write!(f, ", held down by {held}"),
            _ => Ok(()),
        }
    }
}
