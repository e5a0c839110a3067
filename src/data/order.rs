//! The order of samples as a function: no list of them is kept, however many there are.

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
            let hash = mixed
                .bytes()
                .fold(0, |hash, byte| mix(hash ^ u64::from(byte)));
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
