//! The values of a sample, in one list, from which its fields, and the names in files and metrics, are made.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::ByteSize;
use crate::environment::{Severity, nvml};

/// Defines [`Sample`] and the names of its values in files and metrics.
macro_rules! sample {
    ($($(#[$doc:meta])* $field:ident: $type:ty as $name:literal $(by $number:path)?,)*) => {
        /// The state of one GPU, or of the host, at one time. A value that is not known is `None`, never 0.
        ///
        /// Displayed as one line without the source's name: `12.4 GiB of 23.5 GiB used, this process 310.0 MiB, busy 93 %, …`. What is not known is left out.
        ///
        /// ```
        /// use candle_headroom::Monitor;
        /// use candle_headroom::monitor::Sample;
        ///
        /// let monitor = Monitor::builder().start()?;
        /// let host: Sample = *monitor.latest().last().expect("the host's");
        /// println!("{host}");
        /// assert_eq!(host.temperature, None); // only GPUs have one
        /// # Ok::<(), candle_headroom::Error>(())
        /// ```
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
            $($(#[$doc])* pub $field: Option<$type>,)*
        }

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

sample! {
    /// Total memory, in bytes. The host's memory is read at most twice a second.
    total: u64 as "total_bytes",
    /// Memory used by all processes, in bytes; on the host, memory that is not available.
    used: u64 as "used_bytes",
    /// Free memory, in bytes; on the host, memory available without swapping.
    free: u64 as "free_bytes",
    /// Memory of this process, in bytes: on the host its resident memory, read at most twice a second. On a GPU `None` until the driver
    /// lists this process, and in most containers, where the driver lists the host's process numbers.
    process: u64 as "process_bytes",
    /// Memory of other processes on the GPU, in bytes. `None` in such containers, and if the driver does not report one of them.
    others: u64 as "others_bytes",
    /// The share of time in which a kernel ran, in percent.
    utilisation: u64 as "utilisation_percent",
    /// The share of time in which the GPU's memory was read or written, in percent.
    memory_utilisation: u64 as "memory_utilisation_percent",
    /// Temperature in degrees Celsius.
    temperature: u64 as "temperature_celsius",
    /// Power draw in milliwatts.
    power: u64 as "power_milliwatts",
    /// Power limit in milliwatts, read once a second.
    power_limit: u64 as "power_limit_milliwatts",
    /// Clock of the multiprocessors in MHz.
    clock: u64 as "clock_mhz",
    /// Clock of the memory in MHz.
    memory_clock: u64 as "memory_clock_mhz",
    /// Why the clocks are lower than they could be.
    held_down: HeldDown as "held_down_bits" by HeldDown::bits,
    /// PCIe traffic to the GPU in bytes per second. NVML measures it for 20 ms, once a second; its KB are taken as 1,000 bytes.
    pcie_received: u64 as "pcie_received_bytes_per_second",
    /// PCIe traffic from the GPU, likewise.
    pcie_sent: u64 as "pcie_sent_bytes_per_second",
    /// Uncorrected memory errors since the driver was loaded, read once a second.
    ecc_errors: u64 as "ecc_errors",
    /// On the host, the share of time since the sample before that the observed trainers waited for their
    /// [`Loader`](crate::data::Loader)s, in percent. `None` until the first such batch; see [`Monitor`](super::Monitor#one-stream-of-events).
    /// A wait shows once its batch has arrived, and at most five seconds of it after that.
    data_wait: u64 as "data_wait_percent",
}

/// Milliseconds from 1970 to `time`; 0 if the machine's clock showed an earlier time.
pub(crate) fn unix_milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}

/// Whether a source answers.
///
/// ```
/// use candle_headroom::Monitor;
/// use candle_headroom::monitor::Health;
///
/// let monitor = Monitor::builder().start()?;
/// let host = monitor.latest().last().expect("the host's").health;
/// assert_eq!(host, Health::Good);
/// assert_eq!(Health::NeedsReset.to_string(), "needs reset");
/// # Ok::<(), candle_headroom::Error>(())
/// ```
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

/// Why a GPU's clocks are lower than they could be: NVML's clock event reasons, including bits that this crate does not know.
///
/// ```
/// use candle_headroom::monitor::HeldDown;
///
/// let held = HeldDown::from_bits(0x40 | 0x1);
/// assert_eq!(held.to_string(), "idle; temperature, by hardware");
/// assert!(held.is_harmful());
/// assert_eq!(HeldDown::from_bits(0x2000).to_string(), "unknown reason 0x2000");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeldDown(u64);

impl HeldDown {
    /// The bits that NVML's `nvmlDeviceGetCurrentClocksEventReasons` returns.
    ///
    /// ```
    /// use candle_headroom::monitor::HeldDown;
    ///
    /// assert_eq!(HeldDown::from_bits(0x4).to_string(), "power limit");
    /// assert_eq!(HeldDown::from_bits(0).to_string(), "nothing");
    /// ```
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// NVML's bits.
    ///
    /// ```
    /// use candle_headroom::monitor::HeldDown;
    ///
    /// assert_eq!(HeldDown::from_bits(0x2040).bits(), 0x2040); // with bits that this crate does not know
    /// ```
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Whether one of the reasons is heat, a power brake or a hardware slowdown. A power cap is normal under load and does not count.
    ///
    /// ```
    /// use candle_headroom::monitor::HeldDown;
    ///
    /// let [power_limit, too_hot] = [0x4, 0x40].map(HeldDown::from_bits);
    /// assert!(!power_limit.is_harmful() && too_hot.is_harmful());
    /// ```
    pub fn is_harmful(self) -> bool {
        nvml::clock_reasons(self.0).any(|(_, severity, _)| *severity >= Severity::Warning)
    }
}

impl fmt::Display for HeldDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = nvml::clock_reasons(self.0);
        let mut reasons: Vec<_> = known.map(|(.., text)| (*text).to_owned()).collect();
        let unknown = nvml::unknown_clock_reasons(self.0);
        if unknown != 0 {
            reasons.push(format!("unknown reason {unknown:#x}"));
        }
        match reasons.is_empty() {
            true => f.write_str("nothing"),
            false => f.write_str(&reasons.join("; ")),
        }
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let watts = |milliwatts: u64| format!("{} W", milliwatts / 1000);
        let limit = self
            .power_limit
            .map(|limit| format!(" of {}", watts(limit)));
        let of = |total: u64| format!(" of {}", ByteSize(total));
        let known = [
            (self.health != Health::Good).then(|| self.health.to_string()),
            self.used.map(|used| {
                let total = self.total.map(of).unwrap_or_default();
                format!("{}{total} used", ByteSize(used))
            }),
            self.process
                .map(|bytes| format!("this process {}", ByteSize(bytes))),
            self.utilisation.map(|share| format!("busy {share} %")),
            self.temperature.map(|celsius| format!("{celsius} °C")),
            self.power
                .map(|power| watts(power) + &limit.unwrap_or_default()),
            self.clock.map(|clock| format!("{clock} MHz")),
            self.held_down
                .filter(|held| held.is_harmful())
                .map(|held| format!("held down by {held}")),
            self.data_wait
                .map(|share| format!("waiting for data {share} %")),
        ];
        let known: Vec<String> = known.into_iter().flatten().collect();
        f.write_str(&known.join(", "))
    }
}
