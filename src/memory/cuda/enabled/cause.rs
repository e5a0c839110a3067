use crate::error::{Cause, MemoryReading};

/// A neighbour is blamed if memory outside the pool has grown by more than the device's capacity divided by this.
const NEIGHBOUR_FRACTION: u64 = 64;

/// The state that a failed allocation met. Its size is not known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Situation {
    pub(super) bytes: MemoryReading,
    /// The known use of work of this size; `None` if none has succeeded yet.
    pub(super) need: Option<u64>,
    /// Growth of the memory outside the pool since the pool was created.
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
        // With more left than the whole work takes, bytes were not the reason.
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
    fn the_reached_bound_is_named() {
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
    fn an_unknown_cause_is_not_guessed() {
        let plenty = situation(GIB, GIB, None, 14 * GIB);
        assert_eq!(plenty.cause(), Cause::Unknown);
        // The use of work that has never succeeded is not known: the nearer bound is blamed.
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
