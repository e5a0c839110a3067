//! How samples become batches. They are formed within windows of an epoch, so that a batch is found by its place, without those before.

use std::ops::Range;

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
        let mut indices: Vec<_> = (first..end)
            .map(|place| order.index(epoch, place))
            .collect();
        let mut costs = Vec::new();
        if self.sorted.is_some() || !matches!(self.size, Size::Samples(_)) {
            costs.extend(indices.iter().map(|index| cost(*index)));
        }
        if self.sorted.is_some() {
            let mut sorted: Vec<_> = indices.into_iter().zip(costs).collect();
            // Stable, so samples of equal cost stay mixed.
            sorted.sort_by_key(|(_, cost)| *cost);
            (indices, costs) = sorted.into_iter().unzip();
        }
        let cuts = match self.size {
            Size::Samples(samples) => evenly(indices.len(), samples),
            Size::Cost(most) => by_cost(&costs, usize::saturating_add, |sum, _| sum <= most),
            Size::PaddedCost(most) => by_cost(&costs, usize::max, |largest, samples| {
                largest.saturating_mul(samples) <= most
            }),
        };
        let batches: Vec<_> = cuts
            .into_iter()
            .filter_map(|cut| indices.get(cut))
            .collect();
        let count = batches.len();
        let places = (0..count).map(|place| match self.sorted {
            Some(_) => order.batch(epoch, window, count, place),
            None => place,
        });
        let batches = places.filter_map(|place| batches.get(place));
        batches.map(|batch| batch.to_vec()).collect()
    }
}

fn evenly(len: usize, samples: usize) -> Vec<Range<usize>> {
    let starts = (0..len).step_by(samples.max(1));
    starts
        .map(|start| start..len.min(start + samples))
        .collect()
}

/// Cuts before each sample with which a batch would be too large. A sample that is too large by itself is a batch.
fn by_cost(
    costs: &[usize],
    with: impl Fn(usize, usize) -> usize,
    fits: impl Fn(usize, usize) -> bool,
) -> Vec<Range<usize>> {
    let mut cuts = Vec::new();
    let (mut start, mut taken) = (0, 0);
    for (place, &cost) in costs.iter().enumerate() {
        let next = with(taken, cost);
        if place > start && !fits(next, place - start + 1) {
            cuts.push(start..place);
            (start, taken) = (place, cost);
        } else {
            taken = next;
        }
    }
    if start < costs.len() {
        cuts.push(start..costs.len());
    }
    cuts
}
