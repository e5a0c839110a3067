use crate::mix::mix;

const ROUNDS: u64 = 6;

/// A pseudo-random order of the numbers below `len`, computed for each place by itself.
///
/// It is a Feistel network (Luby & Rackoff 1988) over the next power of 2, whose halves differ by a bit where the number of bits is odd; a
/// result that is not below `len` goes through it again until it is (cycle walking, Black & Rogaway 2002), fewer than two times on
/// average.
#[derive(Debug, Clone, Copy)]
pub struct Permutation {
    key: u64,
    len: u64,
    /// Bits of each half. They change places with each of the rounds, whose number is even.
    bits: [u32; 2],
}

impl Permutation {
    pub fn new(len: u64, key: u64) -> Self {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        Self {
            key,
            len,
            bits: [bits.div_ceil(2), bits / 2],
        }
    }

    /// The number at a place below `len`; another place is returned as it is.
    pub fn at(&self, place: u64) -> u64 {
        if place >= self.len {
            return place;
        }
        let mut value = self.walk(place);
        while value >= self.len {
            value = self.walk(value);
        }
        value
    }

    fn walk(&self, value: u64) -> u64 {
        let [mut first, mut second] = self.bits.map(|bits| (1 << bits) - 1);
        let (mut left, mut right) = (value >> self.bits[1], value & second);
        for round in 0..ROUNDS {
            let mixed = mix(self.key ^ mix(right ^ (round << 56)));
            (left, right) = (right, (left ^ mixed) & first);
            (first, second) = (second, first);
        }
        left << self.bits[1] | right
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_number_comes_once(len in 1_u64..2000, key: u64) {
            let order = Permutation::new(len, key);
            let mut seen: Vec<_> = (0..len).map(|place| order.at(place)).collect();
            seen.sort_unstable();
            prop_assert!(seen.into_iter().eq(0..len));
        }

        #[test]
        fn huge_orders_stay_within(len in 1_u64 << 40..u64::MAX / 2, place: u64, key: u64) {
            let order = Permutation::new(len, key);
            prop_assert!(order.at(place % len) < len);
        }
    }

    /// Over many keys each number comes to each place about equally often.
    #[test]
    fn orders_are_uniform() {
        for len in [2, 3, 5, 12, 33] {
            let keys = 400 * len;
            let mut counts = vec![vec![0_u64; len as usize]; len as usize];
            for key in 0..keys {
                let order = Permutation::new(len, mix(key));
                for place in 0..len {
                    counts[place as usize][order.at(place) as usize] += 1;
                }
            }
            // Each count is binomial with a mean of 400 and a deviation of less than 20.
            for count in counts.concat() {
                assert!((290..=510).contains(&count), "{count} of 400 for {len}");
            }
        }
    }

    /// Neighbours do not stay neighbours.
    #[test]
    fn neighbours_are_parted() {
        let order = Permutation::new(1 << 20, 7);
        let close =
            (0..100_000).filter(|place| order.at(*place).abs_diff(order.at(place + 1)) < 1000);
        // By chance about 0.2 % of the pairs.
        assert!((100..300).contains(&close.count()));
    }
}
