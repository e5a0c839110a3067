//! How much of a launch is executed.

use std::collections::BTreeSet;

/// The limits of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The number of instructions after which a warp counts as caught in an endless loop.
    pub instructions: u64,
    /// Which blocks of a large grid are executed; all, if `None`.
    pub sample: Option<Sample>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            instructions: 1 << 34,
            sample: None,
        }
    }
}

/// A sample of a large grid: its first and its last block, and others that are the same in each launch of such a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// A grid of at most so many blocks is executed as a whole.
    pub above: u64,
    /// The number of others; fewer if some of them are alike.
    pub others: u64,
}

/// Where the pseudo-random numbers start.
const SEED: u64 = 0x5eed;

/// The number at a position of a sequence: splitmix64.
fn draw(position: u64) -> u64 {
    let mut bits = SEED.wrapping_add(position.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

impl Sample {
    /// The blocks of a grid that are executed, in their order; `None` for all.
    pub fn blocks(&self, [x, y, z]: [u32; 3]) -> Option<Vec<[u32; 3]>> {
        let plane = u128::from(x) * u128::from(y);
        let count = plane * u128::from(z);
        if count <= u128::from(self.above) || count == 0 {
            return None;
        }
        // The count has at most 96 bits, and far fewer in practice, so that 64 random ones are enough.
        let others = (0..self.others).map(|other| u128::from(draw(other)) % count);
        let chosen: BTreeSet<u128> = others.chain([0, count - 1]).collect();
        let x = u128::from(x);
        let place = |block| [block % x, block % plane / x, block / plane].map(|index| index as u32);
        Some(chosen.into_iter().map(place).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::Sample;

    #[test]
    fn a_sample_has_both_ends_and_is_the_same_each_time() {
        let sample = Sample {
            above: 100,
            others: 16,
        };
        assert_eq!(sample.blocks([100, 1, 1]), None);
        let blocks = sample.blocks([1000, 50, 3]).expect("it is large");
        assert_eq!(blocks.first(), Some(&[0, 0, 0]));
        assert_eq!(blocks.last(), Some(&[999, 49, 2]));
        assert_eq!(blocks.len(), 18);
        assert!(blocks.iter().all(|&[x, y, z]| x < 1000 && y < 50 && z < 3));
        assert_eq!(sample.blocks([1000, 50, 3]), Some(blocks));
        // Of a small grid fewer.
        let all = Sample { above: 1, ..sample };
        assert!(
            all.blocks([4, 1, 1])
                .is_some_and(|blocks| blocks.len() <= 4)
        );
        // A grid of 2^31 · 65535 blocks.
        let blocks = sample.blocks([1 << 31, 65_535, 1]).expect("it is large");
        assert!(blocks.iter().filter(|[_, y, _]| *y > 30_000).count() > 4);
    }
}
