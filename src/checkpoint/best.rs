/// The metric whose best checkpoint is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Best {
    pub(super) metric: String,
    pub(super) is_highest: bool,
}

impl Best {
    /// Whether `value` is better than `other`.
    pub(super) fn prefers(&self, value: f64, other: f64) -> bool {
        match self.is_highest {
            true => value > other,
            false => value < other,
        }
    }
}
