/// What a rank measured in one update, for [`Shares::observe`](super::Shares::observe).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Effort {
    /// Samples that it processed.
    pub samples: usize,
    /// Their cost, in the unit of [`Batch::extent`](crate::Batch::extent), such as tokens. It is what the time is compared with.
    pub cost: usize,
    /// How long it computed, in seconds, without waiting for other ranks or for data.
    pub seconds: f64,
    /// Whether memory ran out and work was done again, so that the time says little.
    pub exhausted: bool,
    /// The most cost per second that it is known to sustain. It counts instead of the time where memory ran out.
    pub sustained: Option<f64>,
}

impl Effort {
    /// Creates what a rank measured that processed `samples` samples of total cost `cost` in `seconds`.
    pub fn new(samples: usize, cost: usize, seconds: f64) -> Self {
        Self {
            samples,
            cost,
            seconds,
            exhausted: false,
            sustained: None,
        }
    }

    /// Sets that memory ran out meanwhile, and the cost per second that the rank is known to sustain without that.
    pub fn exhausted(mut self, sustained: Option<f64>) -> Self {
        (self.exhausted, self.sustained) = (true, sustained);
        self
    }

    /// The seconds that one unit of cost takes; `None` if that was not measured, or nothing that a time can be.
    pub(super) fn pace(&self) -> Option<f64> {
        let pace = match self.exhausted {
            true => 1. / self.sustained?,
            false => self.seconds / self.cost as f64,
        };
        (pace.is_normal() && pace > 0.).then_some(pace)
    }
}
