use super::Shares;
use super::pace::Pace;
use crate::batch::Division;
use crate::error::{DataError, Result};

/// Builds [`Shares`] that follow what is measured; from [`Shares::builder`].
#[derive(Debug, Clone)]
#[must_use = "call `build()`"]
pub struct SharesBuilder {
    ranks: usize,
    least_gain: f64,
    interval: u32,
}

impl SharesBuilder {
    pub(super) fn new(ranks: usize) -> Self {
        Self {
            ranks,
            least_gain: 0.05,
            interval: 8,
        }
    }

    /// Divides anew only if that makes an update shorter by at least this part of it; 0.05 by default. The measured noise may ask for more.
    pub fn least_gain(mut self, part: f64) -> Self {
        self.least_gain = part;
        self
    }

    /// Divides anew at most once in this many updates; 8 by default. Batches that are read ahead keep their division, so a change shows after
    /// as many.
    pub fn interval(mut self, updates: u32) -> Self {
        self.interval = updates;
        self
    }

    /// Builds the shares, which are equal until more is known.
    ///
    /// # Errors
    /// [`DataError::Setting`] if there are no ranks, the gain is not from 0 to 1, or the interval is 0.
    pub fn build(self) -> Result<Shares> {
        let Self {
            ranks,
            least_gain,
            interval,
        } = self;
        let problem = match () {
            () if ranks == 0 => "shares are of at least 1 rank, got 0".to_owned(),
            () if !(0. ..1.).contains(&least_gain) => {
                format!("`least_gain` must be from 0 to below 1, got {least_gain}")
            }
            () if interval == 0 => "`interval` must be at least 1 update, got 0".to_owned(),
            () => {
                return Ok(Shares {
                    division: Division::equal(ranks),
                    paces: vec![Pace::default(); ranks],
                    since: interval,
                    least_gain,
                    interval,
                });
            }
        };
        Err(DataError::Setting(problem).into())
    }
}
