use std::fmt;

use crate::facts::{self, Weight};

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
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// NVML's bits.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Whether one of the reasons is heat, a power brake or a hardware slowdown. A power cap is normal under load and does not count.
    pub fn is_harmful(self) -> bool {
        facts::clock_reasons(self.0).any(|reason| reason.weight >= Weight::Warning)
    }
}

impl fmt::Display for HeldDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = facts::clock_reasons(self.0);
        let mut reasons: Vec<_> = known.map(|reason| reason.text.to_owned()).collect();
        match facts::unknown_clock_reasons(self.0) {
            0 => {}
            unknown => reasons.push(format!("unknown reason {unknown:#x}")),
        }
        match reasons.is_empty() {
            true => f.write_str("nothing"),
            false => f.write_str(&reasons.join("; ")),
        }
    }
}
