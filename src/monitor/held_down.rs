use std::fmt;

/// Why a GPU's clocks are lower than they could be: NVML's clock event reasons, those included that are newer than this list.
///
/// ```
/// use candle_headroom::HeldDown;
///
/// let held = HeldDown::from_bits(0x40 | 0x1);
/// assert_eq!(held.to_string(), "idle, hardware thermal slowdown");
/// assert!(held.is_harmful());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeldDown(u64);

/// NVML's bits, their names, and whether they tell of trouble rather than of settings or of nothing to do.
const REASONS: [(u64, &str, bool); 9] = [
    (0x1, "idle", false),
    (0x2, "clock setting", false),
    (0x4, "power cap", false),
    (0x8, "hardware slowdown", true),
    (0x10, "sync boost", false),
    (0x20, "thermal slowdown", true),
    (0x40, "hardware thermal slowdown", true),
    (0x80, "power brake", true),
    (0x100, "display clock", false),
];

impl HeldDown {
    /// The reasons that NVML's `nvmlDeviceGetCurrentClocksEventReasons` answers with.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// NVML's bits.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Whether one of them tells of heat, a power brake or a slowdown by the hardware. A power cap does not: that is how a GPU
    /// works under load.
    pub fn is_harmful(self) -> bool {
        REASONS
            .iter()
            .any(|(bit, _, harmful)| *harmful && self.0 & bit != 0)
    }
}

impl fmt::Display for HeldDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("nothing");
        }
        let mut rest = self.0;
        let mut comma = "";
        for (bit, name, _) in REASONS {
            if rest & bit != 0 {
                write!(f, "{comma}{name}")?;
                (rest, comma) = (rest & !bit, ", ");
            }
        }
        match rest {
            0 => Ok(()),
            unknown => write!(f, "{comma}unknown reason {unknown:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_reasons_are_kept_and_shown() {
        let held = HeldDown::from_bits(0x2000);
        assert_eq!(held.to_string(), "unknown reason 0x2000");
        assert!(!held.is_harmful());
        assert_eq!(HeldDown::from_bits(0).to_string(), "nothing");
    }
}
