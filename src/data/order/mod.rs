//! The order of samples as a function: no list of them is kept, however many there are.

mod permutation;

use crate::error::{Result, invalid};
use crate::mix::mix;

use permutation::Permutation;

/// The longest text about the parts of a mixture, because a position is to stay short.
const LONGEST: usize = 40;

/// The sample at each place of each epoch.
#[derive(Debug, Clone)]
pub(super) struct Order {
    /// Places in an epoch.
    len: usize,
    /// Without a seed samples come in the order of their indices.
    seed: Option<u64>,
    /// The parts of a mixture.
    parts: Vec<Part>,
}

/// A part of a dataset in a mixture.
#[derive(Debug, Clone, Copy)]
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
        let mut parts = Vec::new();
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
            parts.push(Part {
                first,
                len: size,
                quota,
            });
            first += size;
            placed += quota;
        }
        let mixed = weights.iter().zip(sizes);
        let mixed: Vec<_> = mixed
            .map(|(weight, size)| format!("{weight} of {size}"))
            .collect();
        let mut mixed = mixed.join(" + ");
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
        let place = permuted(self.len, [seed, epoch, 0], place);
        if self.parts.is_empty() {
            return place;
        }
        let mut within = place;
        for (number, part) in self.parts.iter().enumerate() {
            match within.checked_sub(part.quota) {
                Some(rest) => within = rest,
                None => {
                    let drawn = u128::from(epoch) * part.quota as u128 + within as u128;
                    let [pass, place] = [drawn / part.len as u128, drawn % part.len as u128];
                    let key = [seed, pass as u64, number as u64 + 1];
                    return part.first + permuted(part.len, key, place as usize);
                }
            }
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

fn permuted(len: usize, [seed, epoch, part]: [u64; 3], place: usize) -> usize {
    let key = mix(seed ^ mix(epoch ^ mix(part)));
    Permutation::new(len as u64, key).at(place as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_mixture_has_its_share_and_is_read_through() {
        let (sizes, weights) = ([100, 10, 7, 0], [1., 1., 2., 0.]);
        let (order, _) = Order::mixed(40, 3, &sizes, &weights).unwrap();
        let mut counts = vec![0; 117];
        for epoch in 0..10 {
            let mut shares = [0; 3];
            for place in 0..40 {
                let index = order.index(epoch, place);
                counts[index] += 1;
                shares[usize::from(index >= 100) + usize::from(index >= 110)] += 1;
            }
            assert_eq!(shares, [10, 10, 20]);
        }
        // 100 draws from 100 samples, 100 from 10, 200 from 7.
        assert!(counts[..100].iter().all(|count| *count == 1));
        assert!(counts[100..110].iter().all(|count| *count == 10));
        assert!(counts[110..].iter().all(|count| [28, 29].contains(count)));
    }

    #[test]
    fn weights_that_cannot_be_meant_are_refused() {
        for weights in [
            &[1.][..],
            &[0., 0.],
            &[-1., 2.],
            &[f64::NAN, 1.],
            &[f64::INFINITY, 1.],
        ] {
            assert!(
                Order::mixed(10, 0, &[5, 5], weights).is_err(),
                "{weights:?}"
            );
        }
        assert!(Order::mixed(10, 0, &[5, 0], &[1., 1.]).is_err());
    }

    #[test]
    fn epochs_differ_and_repeat() {
        let (order, _) = Order::new(1000, Some(1));
        let epoch =
            |epoch| -> Vec<_> { (0..1000).map(|place| order.index(epoch, place)).collect() };
        assert_eq!(epoch(0), epoch(0));
        let same = epoch(0).into_iter().zip(epoch(1)).filter(|(a, b)| a == b);
        assert!(same.count() < 10);
        assert!((0..1000).all(|place| Order::new(1000, None).0.index(5, place) == place));
    }
}
