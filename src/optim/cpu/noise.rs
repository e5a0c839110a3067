/// The seed of a parameter's noise in its `step`-th update.
#[inline]
pub fn seed(step: u64) -> u32 {
    (step as u32).wrapping_mul(0x9e37_79b9)
}

/// Noise as a number from 0 to 1, without 1.
#[inline]
pub fn chance(noise: u32) -> f32 {
    (noise >> 8) as f32 / (1 << 24) as f32
}

/// A hash of 32 bits, with the multipliers and shifts of Wellons' `lowbias32` (2018).
#[inline]
pub fn noise(index: u32, seed: u32) -> u32 {
    let mut x = index.wrapping_mul(0x9e37_79b9) ^ seed;
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}
