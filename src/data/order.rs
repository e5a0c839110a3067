//! The order of samples as a function: no list of them is kept, however many there are. And how they are cut into batches,
//! within windows of an epoch, so that a batch is found by its place, without those before.

use parking_lot::Mutex;

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
    /// The parts of a mixture, or the whole that is shuffled by blocks.
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
    /// Without them all its samples are shuffled alike.
    blocks: Option<Blocks>,
}

/// Blocks of samples, which are shuffled as a whole, and then the samples of some of them together.
#[derive(Debug)]
struct Blocks {
    /// Where each block ends, counted from the part's first sample.
    ends: Vec<usize>,
    /// The number of blocks whose samples are shuffled together.
    window: usize,
    /// The blocks in the order of a pass through the part. Of the last two passes, because those of a part of a
    /// mixture overlap.
    passes: Mutex<Vec<(u64, Vec<Block>)>>,
}

/// A block of an order.
#[derive(Debug)]
struct Block {
    /// Where it begins in the order.
    place: usize,
    /// Its first sample.
    sample: usize,
}

/// The blocks of a dataset for [`Order`]: where they end, and how many are shuffled together.
pub(super) struct ByBlocks {
    pub(super) ends: Vec<usize>,
    pub(super) window: usize,
}

/// Of the blocks of an order there are at most so many, because 40 bytes are stored for each; more are merged with their neighbours.
const MOST_BLOCKS: usize = 1 << 18;

/// The samples of a block of which nothing is known.
const BLOCK: usize = 1024;

/// Where blocks of equal length end, of which the last one may be shorter.
pub(super) fn even_blocks(len: usize) -> Vec<usize> {
    let size = len.div_ceil(MOST_BLOCKS).max(BLOCK);
    let last = (len > 0).then_some(len);
    (size..len).step_by(size).chain(last).collect()
}

impl ByBlocks {
    /// Checks that the blocks are those of a dataset of `len` samples, and merges them if there are too many.
    pub(super) fn new(mut ends: Vec<usize>, window: usize, len: usize) -> Result<Self> {
        let is_rising = ends.is_sorted_by(|one, next| one < next);
        if !is_rising || ends.first() == Some(&0) || ends.last().copied().unwrap_or(0) != len {
            return Err(invalid!(
                Data,
                "the blocks of a dataset of {len} samples must have samples and end with the last one, got {} blocks up to {:?}",
                ends.len(),
                ends.last()
            ));
        }
        let merged = ends.len().div_ceil(MOST_BLOCKS);
        if merged > 1 {
            ends = ends
                .chunks(merged)
                .filter_map(|some| some.last().copied())
                .collect();
        }
        Ok(Self { ends, window })
    }

    /// What positions compare.
    fn text(&self) -> String {
        let hash = self
            .ends
            .iter()
            .fold(0, |hash, end| mix(hash ^ *end as u64));
        format!(
            ", {} of {} blocks ({:x})",
            self.window,
            self.ends.len(),
            hash as u32
        )
    }

    /// The blocks of a part, which begin and end with it.
    fn of(&self, first: usize, len: usize) -> Blocks {
        let end = first + len;
        let within = self.ends.iter().filter(|it| (first + 1..end).contains(it));
        Blocks {
            ends: within.copied().chain([end]).map(|it| it - first).collect(),
            window: self.window,
            passes: Mutex::default(),
        }
    }
}

impl Order {
    /// With the words by which saved positions compare it.
    pub(super) fn new(len: usize, seed: Option<u64>, blocks: Option<&ByBlocks>) -> (Self, String) {
        let mut text = seed.map_or("as stored".to_owned(), |seed| format!("shuffled by {seed}"));
        text += &blocks.map_or(String::new(), ByBlocks::text);
        let parts = blocks.map(|blocks| Part {
            first: 0,
            len,
            quota: len,
            blocks: Some(blocks.of(0, len)),
        });
        let parts = parts.into_iter().collect();
        (Self { len, seed, parts }, text)
    }

    /// A mixture of parts with these numbers of samples: in each epoch of `len` samples each part has its share by weight. The draws from
    /// a part, over all epochs, go through it again and again, in a new order each time. The draws of the parts are spread evenly over an epoch,
    /// and those of [`CHUNK`] places are mixed.
    pub(super) fn mixed(
        len: usize,
        seed: u64,
        sizes: &[usize],
        weights: &[f64],
        blocks: Option<&ByBlocks>,
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
                blocks: blocks.map(|blocks| blocks.of(first, size)),
            });
            first += size;
            placed += quota;
        }
        let mut mixed = texts.join(" + ") + &blocks.map_or(String::new(), ByBlocks::text);
        if mixed.len() > LONGEST {
            let bytes = mixed.bytes();
            let hash = bytes.fold(0, |hash, byte| mix(hash ^ u64::from(byte)));
            mixed = format!("{} parts ({hash:x})", sizes.len());
        }
        let text = format!("{len} by {seed} in {CHUNK}s from {mixed}");
        let seed = Some(seed);
        Ok((Self { len, seed, parts }, text))
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The index of the sample at a place of an epoch.
    pub(super) fn index(&self, epoch: u64, place: usize) -> usize {
        let Some(seed) = self.seed else { return place };
        if self.parts.is_empty() {
            return permuted(self.len, [seed, epoch, 0], place);
        }
        let Some((number, part, draw)) = self.draw(seed, epoch, place) else {
            return place;
        };
        let (pass, place) = match part.quota == part.len {
            true => (epoch, draw),
            false => {
                let drawn = u128::from(epoch) * part.quota as u128 + draw as u128;
                let len = part.len as u128;
                ((drawn / len) as u64, (drawn % len) as usize)
            }
        };
        let key = [seed, pass, number as u64 + 1];
        let within = match &part.blocks {
            Some(blocks) => blocks.index(key, place),
            None => permuted(part.len, key, place),
        };
        part.first + within
    }

    /// The part that a place of an epoch belongs to, with its number, and how many places before belong to it.
    fn draw(&self, seed: u64, epoch: u64, place: usize) -> Option<(usize, &Part, usize)> {
        if let [whole] = self.parts.as_slice() {
            return Some((0, whole, place));
        }
        let start = place - place % CHUNK;
        let len = CHUNK.min(self.len - start);
        let mut place = start + permuted(len, [seed, epoch, !(start as u64)], place - start);
        // Of the places that no part before has taken, the next part takes its share, evenly: before a place as many as the share of the places
        // before, rounded down. So the places of a part come in order, and none of two parts is the same.
        let mut places = self.len;
        for (number, part) in self.parts.iter().enumerate() {
            let before = |place: usize| place as u128 * part.quota as u128 / places as u128;
            let taken = before(place) as usize;
            if before(place + 1) as usize > taken {
                return Some((number, part, taken));
            }
            (place, places) = (place - taken, places - part.quota);
        }
        None
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
        cost: impl Fn(usize) -> Result<usize>,
        epoch: u64,
        window: usize,
    ) -> Result<Vec<Vec<usize>>> {
        let first = window.saturating_mul(self.window());
        let after = first.saturating_add(self.window());
        let end = self.counted(order.len()).min(after);
        let has_costs = self.sorted.is_some() || !matches!(self.size, Size::Samples(_));
        let samples = (first..end).map(|place| {
            let index = order.index(epoch, place);
            Ok((index, if has_costs { cost(index)? } else { 0 }))
        });
        let mut samples = samples.collect::<Result<Vec<_>>>()?;
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
            return Ok(batches);
        }
        let places = (0..batches.len()).map(|at| order.batch(epoch, window, batches.len(), at));
        let mixed = places.filter_map(|place| batches.get(place).cloned());
        Ok(mixed.collect())
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

impl Blocks {
    /// The sample at a place of a pass.
    fn index(&self, key: [u64; 3], place: usize) -> usize {
        let [seed, pass, part] = key;
        let mut passes = self.passes.lock();
        let known = passes.iter().position(|(known, _)| *known == pass);
        let at = known.unwrap_or_else(|| {
            passes.truncate(1);
            passes.insert(0, (pass, self.order(key)));
            0
        });
        let order = passes.get(at).map_or(&[][..], |(_, order)| order);
        let block = |blocks: &[Block], place| blocks.partition_point(|it| it.place <= place) - 1;
        let window = block(order, place) / self.window;
        let blocks = order.chunks(self.window).nth(window).unwrap_or_default();
        let first = blocks.first().map_or(0, |it| it.place);
        let after = order.get((window + 1).saturating_mul(self.window));
        let end = after.map(|it| it.place).or(self.ends.last().copied());
        let of_window = [mix(seed ^ !(window as u64)), pass, part];
        let len = end.unwrap_or(0) - first;
        let place = first + permuted(len, of_window, place - first);
        let found = blocks.get(block(blocks, place));
        found.map_or(place, |it| it.sample + place - it.place)
    }

    /// The blocks in the order of a pass.
    fn order(&self, key: [u64; 3]) -> Vec<Block> {
        let end = |block: usize| self.ends.get(block).copied().unwrap_or(0);
        let mut after = 0;
        let blocks = (0..self.ends.len()).map(|at| {
            let block = permuted(self.ends.len(), key, at);
            let sample = block.checked_sub(1).map_or(0, end);
            let place = after;
            after += end(block) - sample;
            Block { place, sample }
        });
        blocks.collect()
    }
}

/// Places of a mixture's epoch that are mixed. More would take apart what a part's blocks keep together.
const CHUNK: usize = 1024;

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
