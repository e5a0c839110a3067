use std::fmt;
use std::time::Duration;

/// What ranks did for an update; in [`StepReport::exchange`](crate::StepReport::exchange).
///
/// `{}` is a part of a line: `24 samples on 3 ranks, 120 ms computing, 35 ms waiting for rank 2, 4 ms reducing`. Times are the host's: on a GPU,
/// work that is queued counts as reducing, which waits for it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Exchange {
    /// This rank.
    pub rank: usize,
    /// What each rank did, in their order.
    pub ranks: Vec<RankWork>,
    /// How long this rank waited for the status messages of all others.
    pub waited: Duration,
    /// How long the ranks took to add their gradients.
    pub reduced: Duration,
}

/// A rank's part of an update.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct RankWork {
    /// Number of samples.
    pub samples: usize,
    /// The weight of its losses.
    pub weight: f64,
    /// The time that its samples took, without waiting for data or for other ranks.
    pub computed: Duration,
    /// The time from the exchange before to this one, without waiting for other ranks: with the wait for data, and with the caller's work
    /// between steps.
    pub elapsed: Duration,
}

impl Exchange {
    /// Returns the number of samples of all ranks.
    pub fn samples(&self) -> usize {
        self.ranks.iter().map(|work| work.samples).sum()
    }

    /// Returns how long this rank's own samples took.
    pub fn computed(&self) -> Duration {
        let own = self.ranks.get(self.rank);
        own.map_or(Duration::ZERO, |work| work.computed)
    }

    /// Returns the rank that came last, for which the others waited.
    pub fn slowest(&self) -> usize {
        let ranks = self.ranks.iter().enumerate();
        let slowest = ranks.max_by_key(|(_, work)| work.elapsed);
        slowest.map_or(0, |(rank, _)| rank)
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (samples, ranks) = (self.samples(), self.ranks.len());
        write!(f, "{samples} samples on {ranks} ranks")?;
        write!(f, ", {} ms computing", self.computed().as_millis())?;
        // Less than a millisecond is not worth a word.
        match (self.waited.as_millis(), self.slowest()) {
            (0, _) => {}
            (waited, slowest) if slowest == self.rank => write!(f, ", {waited} ms waiting")?,
            (waited, slowest) => write!(f, ", {waited} ms waiting for rank {slowest}")?,
        }
        match self.reduced.as_millis() {
            0 => Ok(()),
            reduced => write!(f, ", {reduced} ms reducing"),
        }
    }
}
