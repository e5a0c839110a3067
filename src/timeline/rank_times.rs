use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How the ranks of a group spent their time; from [`Timeline::save_all`](crate::Timeline::save_all).
///
/// `{}` is a line: `rank 3 is the slowest: the others waited 12 % of the time for it`. The ranks that waited longest for each update are
/// compared with the one that waited least; in a long run several updates are taken together.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RankTimes {
    /// Each rank's times, in their order.
    pub ranks: Vec<RankTime>,
    /// How long the others waited for each rank, in the order of ranks: the mean over them.
    pub waited_for: Vec<Duration>,
}

/// How one rank spent its time. What is left of [`total`](Self::total) is the caller's work outside of steps, and the time to
/// recover when memory ran out.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RankTime {
    /// The name of its machine.
    pub host: String,
    /// From the beginning of its first batch to the end of its last.
    pub total: Duration,
    /// In transfers, forward and backward passes, and updates of the parameters.
    pub computing: Duration,
    /// Waiting for batches of a [`Loader`](crate::data::Loader).
    pub loading: Duration,
    /// Waiting for other ranks before updates.
    pub waiting: Duration,
    /// Adding the gradients of all ranks.
    pub reducing: Duration,
    /// How often memory ran out.
    pub exhaustions: u64,
    /// The highest use of memory, in bytes; `None` without a memory that counts.
    pub peak: Option<u64>,
}

impl RankTimes {
    /// Returns the rank for which the others waited longest, and the share of the time that they did; `None` if they waited for none.
    pub fn slowest(&self) -> Option<(usize, f64)> {
        let ranks = self.waited_for.iter().enumerate();
        let (rank, _) = ranks.max_by_key(|(_, waited)| **waited)?;
        Some((rank, self.share(rank))).filter(|(_, share)| *share > 0.)
    }

    /// The part of the time that the others waited for a rank, from 0 to 1.
    fn share(&self, rank: usize) -> f64 {
        let total = self.ranks.iter().map(|time| time.total.as_secs_f64());
        let mean = total.sum::<f64>() / self.ranks.len().max(1) as f64;
        let waited = self.waited_for.get(rank).copied().unwrap_or_default();
        match mean > 0. {
            true => (waited.as_secs_f64() / mean).min(1.),
            false => 0.,
        }
    }
}

impl fmt::Display for RankTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Below, the messages between ranks take as long as the waiting.
        const LEAST: f64 = 0.01;
        let Some((rank, share)) = self.slowest().filter(|(_, share)| *share >= LEAST) else {
            return f.write_str("no rank keeps the others waiting");
        };
        let percent = 100. * share;
        write!(
            f,
            "rank {rank} is the slowest: the others waited {percent:.0} % of the time for it"
        )?;
        let shares = (0..self.ranks.len()).map(|other| self.share(other));
        match shares.sum::<f64>() - share {
            rest if rest >= LEAST => write!(f, ", and {:.0} % for other ranks", 100. * rest),
            _ => Ok(()),
        }
    }
}
