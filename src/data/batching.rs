use super::order::Order;

/// How samples are cut into batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Batching {
    pub(super) size: Size,
    /// Samples that are sorted by cost before they are cut; `None` to leave their order.
    pub(super) sorted: Option<usize>,
    /// Leaves out a last batch that is smaller than the others.
    pub(super) drops_last: bool,
}

/// The size of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    Samples(usize),
    /// The sum of the samples' costs.
    Cost(usize),
    /// The number of samples times the largest cost.
    PaddedCost(usize),
}

/// Samples that are cut by their cost together, if nothing else was asked.
pub(super) const WINDOW: usize = 1024;

impl Batching {
    /// Batches are formed within windows of so many places, so that the batches at any place can be found without those before.
    pub(super) fn window(&self) -> usize {
        match (self.size, self.sorted) {
            (Size::Samples(samples), sorted) => sorted.unwrap_or(samples).next_multiple_of(samples),
            (_, sorted) => sorted.unwrap_or(WINDOW),
        }
    }

    /// The number of windows in an epoch of `len` places.
    pub(super) fn windows(&self, len: usize) -> usize {
        self.counted(len).div_ceil(self.window())
    }

    /// The places of an epoch that are in any batch.
    fn counted(&self, len: usize) -> usize {
        match self.size {
            Size::Samples(samples) if self.drops_last => len - len % samples,
            _ => len,
        }
    }

    /// What saved positions and ranks are compared by: a text, and the places in a window.
    pub(super) fn text(&self) -> (String, usize) {
        let size = match self.size {
            Size::Samples(samples) => format!("{samples} samples"),
            Size::Cost(cost) => format!("cost {cost}"),
            Size::PaddedCost(cost) => format!("padded cost {cost}"),
        };
        let sorted = self.sorted.map_or("", |_| ", sorted");
        let last = ["", ", last left out"][usize::from(self.drops_last)];
        (format!("{size}{sorted}{last}"), self.window())
    }

    /// The batches of a window, as indices of samples, in the order in which they come.
    pub(super) fn batches(
        &self,
        order: &Order,
        cost: impl Fn(usize) -> usize,
        epoch: u64,
        window: usize,
    ) -> Vec<Vec<usize>> {
        let first = window.saturating_mul(self.window());
        let end = self
            .counted(order.len())
            .min(first.saturating_add(self.window()));
        let has_costs = self.sorted.is_some() || !matches!(self.size, Size::Samples(_));
        let samples = (first..end).map(|place| {
            let index = order.index(epoch, place);
            (index, if has_costs { cost(index) } else { 0 })
        });
        let mut samples: Vec<_> = samples.collect();
        if self.sorted.is_some() {
            // Stable, so samples of equal cost stay mixed.
            samples.sort_by_key(|(_, cost)| *cost);
        }
        let mut batches: Vec<Vec<_>> = Vec::new();
        let (mut sum, mut largest) = (0_usize, 0);
        for (index, cost) in samples {
            (sum, largest) = (sum.saturating_add(cost), cost.max(largest));
            match batches.last_mut() {
                Some(batch) if self.fits(batch.len() + 1, sum, largest) => batch.push(index),
                // Also a sample that is too large by itself.
                _ => {
                    (sum, largest) = (cost, cost);
                    batches.push(vec![index]);
                }
            }
        }
        if self.sorted.is_none() {
            return batches;
        }
        let places = (0..batches.len()).map(|at| order.batch(epoch, window, batches.len(), at));
        let mixed = places.filter_map(|place| batches.get(place).cloned());
        mixed.collect()
    }

    /// Whether so many samples, with this sum and this largest of their costs, are not too many for a batch.
    fn fits(&self, samples: usize, sum: usize, largest: usize) -> bool {
        match self.size {
            Size::Samples(most) => samples <= most,
            Size::Cost(most) => sum <= most,
            Size::PaddedCost(most) => largest.saturating_mul(samples) <= most,
        }
    }
}
