//! Random numbers as a function of their position: Philox4x32-7 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy
//! as 1, 2, 3" (2011).

/// Blocks that are computed at a time, so that the compiler can use vector instructions.
const BLOCKS: usize = 8;
/// Numbers that are computed at a time.
pub const NUMBERS: usize = 4 * BLOCKS;

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
    let mut key = halves(seed);
    let [stream_low, stream_high] = halves(stream);
    let (mut c0, mut c1) = ([0; BLOCKS], [0; BLOCKS]);
    let (mut c2, mut c3) = ([stream_low; BLOCKS], [stream_high; BLOCKS]);
    let first = at.wrapping_mul(BLOCKS as u64);
    for ((low, high), block) in c0.iter_mut().zip(&mut c1).zip(0..) {
        [*low, *high] = halves(first.wrapping_add(block));
    }
    for _ in 0..ROUNDS {
        let [k0, k1] = key;
        for (((c0, c1), c2), c3) in c0.iter_mut().zip(&mut c1).zip(&mut c2).zip(&mut c3) {
            let [low0, high0] = halves(u64::from(FACTORS[0]) * u64::from(*c0));
            let [low1, high1] = halves(u64::from(FACTORS[1]) * u64::from(*c2));
            (*c0, *c1, *c2, *c3) = (high1 ^ *c1 ^ k0, low1, high0 ^ *c3 ^ k1, low0);
        }
        key = [k0.wrapping_add(KEY_STEPS[0]), k1.wrapping_add(KEY_STEPS[1])];
    }
    let mut numbers = [0; NUMBERS];
    let blocks = c0.into_iter().zip(c1).zip(c2).zip(c3);
    for (numbers, (((c0, c1), c2), c3)) in numbers.as_chunks_mut::<4>().0.iter_mut().zip(blocks) {
        *numbers = [c0, c1, c2, c3];
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::{NUMBERS, numbers};

    /// A known answer of the authors' library Random123.
    #[test]
    fn zeros_give_the_known_answer() {
        let known = [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48];
        assert_eq!(numbers(0, 0, 0)[..4], known);
    }

    #[test]
    fn seeds_streams_and_positions_differ() {
        let of = |seed, stream, at| numbers(seed, stream, at);
        let all = [
            of(1, 0, 0),
            of(0, 1, 0),
            of(0, 0, 1),
            of(1 << 40, 0, 0),
            of(0, 1 << 40, 0),
        ];
        for (i, a) in all.iter().enumerate() {
            for b in &all[..i] {
                let same = a.iter().zip(b).filter(|(a, b)| a == b).count();
                assert_eq!(same, 0);
            }
        }
        assert_eq!(NUMBERS, all[0].len());
    }
}
