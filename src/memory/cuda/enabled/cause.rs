use crate::error::{Cause, MemoryReading};

/// By how much of the device what is not ours must have grown to be blamed.
const NEIGHBOUR_FRACTION: u64 = 64;

/// What a failed allocation met, as far as the numbers tell; how much it asked for is not among them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Situation {
    pub(super) bytes: MemoryReading,
    /// What work of this size is known to take; `None` where none has gone well yet.
    pub(super) need: Option<u64>,
    /// By how much the memory outside the pool has grown since the pool was made.
    pub(super) others_grew: u64,
}

impl Situation {
    pub(super) fn cause(&self) -> Cause {
        let (Some(reserved), Some(free), Some(total)) =
            (self.bytes.reserved, self.bytes.free, self.bytes.total)
        else {
            return Cause::Unknown;
        };
        let used = self.bytes.peak.or(self.bytes.in_use).unwrap_or(reserved);
        let unused = reserved.saturating_sub(used);
        let limit_leaves = self.bytes.limit.map(|limit| limit.saturating_sub(reserved));
        let growth = limit_leaves.unwrap_or(u64::MAX).min(free);
        // Where more is left than the whole work takes, it did not fail for want of bytes.
        if let Some(need) = self.need {
            if growth >= need {
                return Cause::Unknown;
            }
            if growth.saturating_add(unused) >= need {
                return Cause::Fragmented;
            }
        }
        if limit_leaves.is_some_and(|leaves| leaves <= free) {
            return Cause::Limit;
        }
        match self.others_grew > total / NEIGHBOUR_FRACTION {
            true => Cause::Neighbour,
            false => Cause::DeviceFull,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A device of 16 GiB on which the pool holds `reserved`, of which `used` were used at the peak.
    fn situation(used: u64, reserved: u64, limit: Option<u64>, free: u64) -> Situation {
        Situation {
            bytes: MemoryReading {
                peak: Some(used),
                reserved: Some(reserved),
                limit,
                free: Some(free),
                total: Some(16 * GIB),
                ..MemoryReading::default()
            },
            need: Some(2 * GIB),
            others_grew: 0,
        }
    }

    #[test]
    fn the_bound_that_was_met_is_named() {
        let limited = situation(4 * GIB, 4 * GIB, Some(4 * GIB + 1), 9 * GIB);
        assert_eq!(limited.cause(), Cause::Limit);
        let full = situation(14 * GIB, 15 * GIB, None, GIB / 2);
        assert_eq!(full.cause(), Cause::DeviceFull);
        let crowded = Situation {
            others_grew: 8 * GIB,
            ..situation(7 * GIB, 7 * GIB, Some(12 * GIB), GIB / 2)
        };
        assert_eq!(crowded.cause(), Cause::Neighbour);
        let pieces = situation(4 * GIB, 7 * GIB, Some(7 * GIB), 8 * GIB);
        assert_eq!(pieces.cause(), Cause::Fragmented);
        let with_pieces = situation(4 * GIB, 5 * GIB, Some(6 * GIB), 8 * GIB);
        assert_eq!(with_pieces.cause(), Cause::Fragmented);
    }

    #[test]
    fn what_cannot_be_told_is_not_guessed() {
        let plenty = situation(GIB, GIB, None, 14 * GIB);
        assert_eq!(plenty.cause(), Cause::Unknown);
        // Of work that has never gone well nobody knows what it takes: the nearer bound is blamed.
        let first = Situation {
            need: None,
            ..plenty
        };
        assert_eq!(first.cause(), Cause::DeviceFull);
        let blind = Situation {
            bytes: MemoryReading::default(),
            ..plenty
        };
        assert_eq!(blind.cause(), Cause::Unknown);
    }
}
