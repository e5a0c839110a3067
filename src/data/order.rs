//! The order of samples as a function: no list of them is kept, however many there are. And how they are cut into batches,
//! within windows of an epoch, so that a batch is found by its place, without those before.

use crate::error::{Result, invalid};
use crate::mix::mix;

/// The longest text about the parts of a mixture, because a position is to stay short.
const LONGEST: usize = 40;

/// The sample at each place of each epoch.
#[derive(Debug)]
pub(super) struct Order {
    /// Places in an epoch.
    len: usize,
    /// Without a seed samples come in the order of their indices.
    seed: Option<u64>,
    /// The parts of a mixture.
    parts: Vec<Part>,
}

/// A part of a dataset in a mixture.
#[derive(Debug)]
struct Part {
    /// Index of its first sample in the whole dataset.
    first: usize,
    /// The number of its samples.
    len: usize,
    /// How many places of an epoch it has.
    quota: usize,
}

impl Order {
    /// With the words by which saved positions compare it.
    pub(super) fn new(len: usize, seed: Option<u64>) -> (Self, String) {
        let text = seed.map_or("as stored".to_owned(), |seed| format!("shuffled by {seed}"));
        let parts = Vec::new();
        (Self { len, seed, parts }, text)
    }

    /// A mixture of parts with these numbers of samples: in each epoch of `len` samples each part has its share by weight. The draws from
    /// a part, over all epochs, go through it again and again, in a new order each time; within an epoch they come mixed.
    pub(super) fn mixed(
        len: usize,
        seed: u64,
        sizes: &[usize],
        weights: &[f64],
    ) -> Result<(Self, String)> {
        let total: f64 = weights.iter().sum();
        let are_numbers =
            weights.iter().all(|weight| *weight >= 0.) && total.is_finite() && total > 0.;
        if !are_numbers || weights.len() != sizes.len() {
            let parts = sizes.len();
            return Err(invalid!(
                Data,
                "`mixture` needs a weight of at least 0 for each of {parts} parts, not all 0, got {weights:?}"
            ));
        }
        let (mut parts, mut texts) = (Vec::new(), Vec::new());
        let (mut first, mut sum, mut placed) = (0, 0., 0);
        for (index, (&size, weight)) in sizes.iter().zip(weights).enumerate() {
            sum += weight;
            // Rounded sums, so that the quotas add up to all places.
            let end = (len as f64 * (sum / total)).round() as usize;
            let quota = end.min(len) - placed;
            if quota > 0 && size == 0 {
                return Err(invalid!(
                    Data,
                    "part {index} of the mixture has weight {weight} and no samples"
                ));
            }
            if quota == 0 && *weight > 0. {
                return Err(invalid!(
                    Data,
                    "part {index} of the mixture has weight {weight}, too little for one of an epoch's {len} samples: raise it, or \
                     set more `samples`"
                ));
            }
            texts.push(format!("{weight} of {size}"));
            parts.push(Part {
                first,
                len: size,
                quota,
            });
            first += size;
            placed += quota;
        }
        let mut mixed = texts.join(" + ");
        if mixed.len() > LONGEST {
            let bytes = mixed.bytes();
            let hash = bytes.fold(0, |hash, byte| mix(hash ^ u64::from(byte)));
            mixed = format!("{} parts ({hash:x})", sizes.len());
        }
        let text = format!("{len} by {seed} from {mixed}");
        let seed = Some(seed);
        Ok((Self { len, seed, parts }, text))
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The index of the sample at a place of an epoch.
    pub(super) fn index(&self, epoch: u64, place: usize) -> usize {
        let Some(seed) = self.seed else { return place };
        let mut place = permuted(self.len, [seed, epoch, 0], place);
        for (number, part) in self.parts.iter().enumerate() {
            if place < part.quota {
                let drawn = u128::from(epoch) * part.quota as u128 + place as u128;
                let [pass, place] = [drawn / part.len as u128, drawn % part.len as u128];
                let key = [seed, pass as u64, number as u64 + 1];
                return part.first + permuted(part.len, key, place as usize);
            }
            place -= part.quota;
        }
        place
    }

    /// The order in which the `count` batches of a window come: with a seed, mixed.
    pub(super) fn batch(&self, epoch: u64, window: usize, count: usize, place: usize) -> usize {
        match self.seed {
            Some(seed) => permuted(count, [!seed, epoch, window as u64], place),
            None => place,
        }
    }
}

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
        let after = first.saturating_add(self.window());
        let end = self.counted(order.len()).min(after);
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

const ROUNDS: u64 = 6;

/// The number at a place of a pseudo-random order of the numbers below `len`, computed for each place by itself; another place is returned as
/// it is.
///
/// It is a Feistel network (Luby & Rackoff 1988) over the next power of 2, whose halves differ by a bit where the number of bits is odd; a
/// result that is not below `len` goes through it again until it is (cycle walking, Black & Rogaway 2002), fewer than two times on
/// average.
fn permuted(len: usize, [seed, epoch, part]: [u64; 3], place: usize) -> usize {
    if place >= len {
        return place;
    }
    let key = mix(seed ^ mix(epoch ^ mix(part)));
    let bits = usize::BITS - (len - 1).leading_zeros();
    // Of each half. They change places with each of the rounds, whose number is even.
    let bits = [bits.div_ceil(2), bits / 2];
    let mut value = place as u64;
    loop {
        let [mut first, mut second] = bits.map(|bits| (1_u64 << bits) - 1);
        let (mut left, mut right) = (value >> bits[1], value & second);
        for round in 0..ROUNDS {
            let mixed = mix(key ^ mix(right ^ (round << 56)));
            (left, right) = (right, (left ^ mixed) & first);
            (first, second) = (second, first);
        }
        value = left << bits[1] | right;
        if value < len as u64 {
            return value as usize;
        }
    }
}
