//! Random numbers that depend on nothing but their seed. Runs that are resumed rely on the values.

/// The finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The seed of a parameter's noise in its `step`-th update. `stream` is the parameter's own.
#[inline]
pub(crate) fn seed(step: u64, stream: u64) -> u64 {
    mix(stream ^ mix(step))
}

/// The seed of one of the tensors that an update writes.
#[inline]
pub(crate) fn part(seed: u64, index: u64) -> u64 {
    mix(seed.wrapping_add(index))
}

/// Noise as a number from 0 to 1, without 1.
#[inline]
pub(crate) fn chance(noise: u32) -> f32 {
    (noise >> 8) as f32 / (1 << 24) as f32
}

/// Noise for 2^32 elements, those whose indices have the same upper half, in operations of 32 bits, which vectorize.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Noise(u32, u32);

impl Noise {
    /// For the elements around this index.
    #[inline]
    pub(crate) fn new(seed: u64, index: u64) -> Self {
        let upper = ((index >> 32) as u32).wrapping_mul(0x85eb_ca6b);
        Self(seed as u32, ((seed >> 32) as u32).wrapping_add(upper))
    }

    /// A hash of the index, with the multipliers and shifts of Wellons' `lowbias32` (2018).
    #[inline]
    pub(crate) fn at(self, index: u32) -> u32 {
        let mut x = index.wrapping_mul(0x9e37_79b9) ^ self.0;
        x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d) ^ self.1;
        x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
        x ^ (x >> 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tensor of more than 2^32 elements, and more steps than that, repeat nothing.
    #[test]
    fn noise_does_not_repeat_after_32_bits() {
        const TURN: u64 = 1 << 32;
        let noise = |step, stream, index: u64| {
            let seed = part(seed(step, stream), 0);
            Noise::new(seed, index).at(index as u32)
        };
        let differ = |other: &dyn Fn(u64) -> u32| {
            let equal = (0..4096).filter(|index| noise(7, 1, *index) == other(*index));
            equal.count() == 0
        };
        assert!(differ(&|index| noise(7, 1, index + TURN)));
        assert!(differ(&|index| noise(7 + TURN, 1, index)));
        assert!(differ(&|index| noise(7, 1 + TURN, index)));
        assert!(differ(&|index| noise(8, 1, index)));
    }

    /// The upper half is added in the middle of a hash, so that the noise is as even as before.
    #[test]
    fn noise_is_even() {
        for index in [0, (1 << 32) - 500, 5 << 32] {
            let seed = part(seed(3, 9), 1);
            let chances = (index..index + 10_000)
                .map(|index| f64::from(chance(Noise::new(seed, index).at(index as u32))));
            let mean = chances.sum::<f64>() / 10_000.;
            // Five standard deviations of a mean of 10,000 even numbers are 0.0144.
            assert!((mean - 0.5).abs() < 0.0144, "{mean}");
        }
    }
}
