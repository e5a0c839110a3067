use std::time::Duration;

/// What ranks did for an update; in [`StepReport::exchange`](crate::StepReport::exchange).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Exchange {
    /// This rank.
    pub rank: usize,
    /// What each rank did, in their order.
    pub ranks: Vec<RankWork>,
    /// How long this rank waited for the last one.
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
}

impl Exchange {
    /// Returns the number of samples of all ranks.
    pub fn samples(&self) -> usize {
        self.ranks.iter().map(|work| work.samples).sum()
    }

    /// Returns the rank that took longest.
    pub fn slowest(&self) -> usize {
        let ranks = self.ranks.iter().enumerate();
        let slowest = ranks.max_by_key(|(_, work)| work.computed);
        slowest.map_or(0, |(rank, _)| rank)
    }
}
