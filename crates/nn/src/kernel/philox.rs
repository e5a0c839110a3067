//! Random numbers as a function of their position: Philox4x32-7 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy
//! as 1, 2, 3" (2011).

/// Numbers that are computed at a time.
pub const NUMBERS: usize = 4;

/// The stream of [`Attention::dropout`](crate::Attention::dropout). The calls within a scope have the streams from 0 on: a model that
/// passes on the seed of its scope would get the masks of the first of them otherwise.
pub const ATTENTION: u64 = 1 << 63;
/// The stream of [`dropout_with_seed`](crate::ops::dropout_with_seed), for the same reason.
pub const GIVEN_SEED: u64 = ATTENTION + 1;

const ROUNDS: u32 = 7;
const FACTORS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

fn halves(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

/// The numbers `NUMBERS · at` and following of a seed's stream.
// rustc 1.95 with opt-level 3 fails to compile it as a function of its own.
#[inline(always)]
pub fn numbers(seed: u64, stream: u64, at: u64) -> [u32; NUMBERS] {
    let [mut k0, mut k1] = halves(seed);
    let ([mut c0, mut c1], [mut c2, mut c3]) = (halves(at), halves(stream));
    for _ in 0..ROUNDS {
        let [low0, high0] = halves(u64::from(FACTORS[0]) * u64::from(c0));
        let [low1, high1] = halves(u64::from(FACTORS[1]) * u64::from(c2));
        (c0, c1, c2, c3) = (high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0);
        k0 = k0.wrapping_add(KEY_STEPS[0]);
        k1 = k1.wrapping_add(KEY_STEPS[1]);
    }
    [c0, c1, c2, c3]
}

#[cfg(test)]
mod tests {
    use super::numbers;

    /// A known answer of the authors' library Random123.
    #[test]
    fn zeros_give_the_known_answer() {
        let known = [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48];
        assert_eq!(numbers(0, 0, 0), known);
    }

    #[test]
    fn every_bit_of_seed_stream_and_position_counts() {
        let zero = numbers(0, 0, 0);
        for bit in 0..64 {
            let one = 1 << bit;
            for other in [numbers(one, 0, 0), numbers(0, one, 0), numbers(0, 0, one)] {
                assert!(zero.iter().zip(other).all(|(a, b)| *a != b), "bit {bit}");
            }
        }
    }
}
