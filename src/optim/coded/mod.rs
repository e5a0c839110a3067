//! Moments of 8 bits: blocks of 256 elements, each with its largest element in f32 and a byte for each element.

#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
use std::arch::is_x86_feature_detected;

use candle_core::DType;

/// A byte that stands for a number relative to the largest of its block: the dynamic tree code of Dettmers et al. 2022 (arXiv
/// 2110.02861).
///
/// Behind the sign, zeros count decades downwards from the highest; behind the one that ends them, the rest is a position within the
/// decade: all positions are equally far apart. Two bytes are left over: 0, and the largest number itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// For first moments.
    Signed,
    /// For second moments.
    Unsigned,
}

/// The upper ends of the decades, and their inverses.
const ENDS: [(f32, f32); DECADES] = [
    (1e-6, 1e6),
    (1e-5, 1e5),
    (1e-4, 1e4),
    (1e-3, 1e3),
    (1e-2, 1e2),
    (1e-1, 1e1),
    (1., 1.),
];
const DECADES: usize = 7;

/// Where a decade begins, and how its numbers are coded: in the same arithmetic as in kernels/coded.cuh.
#[derive(Clone, Copy)]
struct Decade {
    /// Its first number.
    begin: f32,
    /// One over its upper end.
    tens: f32,
    /// The number of positions; also the byte of the first.
    count: i32,
}

/// One over the lowest first moment, below which is 0.
const LOWEST: f32 = 1. / 5.5e-7;
/// The largest number, but for the rounding of a division.
const LARGEST: f32 = 0.999_999;

static SIGNED: [f32; 256] = numbers(true);
static UNSIGNED: [f32; 256] = numbers(false);

/// The number of positions in a decade.
const fn positions(is_signed: bool, decade: usize) -> u32 {
    1 << (if is_signed { decade } else { decade + 1 })
}

/// The byte of the largest number.
const fn largest(is_signed: bool) -> usize {
    if is_signed { 0x80 } else { 1 }
}

const fn decades(is_signed: bool) -> [Decade; DECADES] {
    let none = Decade {
        begin: 0.,
        tens: 0.,
        count: 0,
    };
    let (mut decades, mut decade) = ([none; DECADES], 0);
    while decade < DECADES {
        let (end, tens) = ENDS[decade];
        let count = positions(is_signed, decade);
        decades[decade] = Decade {
            begin: end * (0.1 + 0.45 / count as f32),
            tens,
            count: count as i32,
        };
        decade += 1;
    }
    decades
}

/// The numbers that the bytes stand for.
const fn numbers(is_signed: bool) -> [f32; 256] {
    let (mut numbers, mut decade) = ([0.; 256], 0);
    while decade < DECADES {
        let (end, _) = ENDS[decade];
        let count = positions(is_signed, decade);
        let mut position = 0;
        while position < count {
            let number = end * (0.1 + (position as f32 + 0.5) * (0.9 / count as f32));
            let code = (count + position) as usize;
            numbers[code] = number;
            if is_signed {
                numbers[code | 0x80] = -number;
            }
            position += 1;
        }
        decade += 1;
    }
    numbers[largest(is_signed)] = 1.;
    numbers
}

impl Code {
    /// The numbers that the bytes stand for.
    pub fn values(self) -> &'static [f32; 256] {
        match self {
            Self::Signed => &SIGNED,
            Self::Unsigned => &UNSIGNED,
        }
    }

    /// Codes numbers, multiplied by `factor`; the shorter slice decides how many. A number between two of the code becomes the upper
    /// one where its part of the way between them is above `chance`, of its index: the nearer one for a half.
    #[inline(always)]
    pub fn encode(
        self,
        numbers: &[f32],
        factor: f32,
        codes: &mut [u8],
        chance: impl Fn(usize) -> f32,
    ) {
        // Loops, because the closure of a `for_each` is not compiled into the function that enables AVX2 either.
        let all = codes.iter_mut().zip(numbers).enumerate();
        match self {
            Self::Signed => {
                for (i, (code, x)) in all {
                    *code = encode::<true>(*x, factor, chance(i));
                }
            }
            Self::Unsigned => {
                for (i, (code, x)) in all {
                    *code = encode::<false>(*x, factor, chance(i));
                }
            }
        }
    }
}

/// The byte of a number that times `factor` is between -1 and 1. Without branches or memory, so that a loop of it is vectorised.
#[inline(always)]
fn encode<const IS_SIGNED: bool>(number: f32, factor: f32, chance: f32) -> u8 {
    let size = (number * factor).abs();
    let size = if size < 1. { size } else { 1. };
    let [lowest, above @ ..] = const { decades(IS_SIGNED) };
    let (mut tens, mut count) = (lowest.tens, lowest.count);
    for decade in above {
        let is_in = size >= decade.begin;
        tens = if is_in { decade.tens } else { tens };
        count = if is_in { decade.count } else { count };
    }
    let place = (size * tens - 0.1) * (count as f32 * (1. / 0.9)) - 0.5;
    // SAFETY: `size` is at least 0 and at most 1, so it is no NaN, and `tens` and `count` are finite and small.
    let position: i32 = unsafe { place.to_int_unchecked() };
    let position = position.min(count - 1);
    // Behind the last number of a decade the next is three times as far as within it, and the largest half as far.
    let is_last = position == count - 1;
    let is_highest = count == const { positions(IS_SIGNED, DECADES - 1) as i32 };
    let steps = if is_highest { 2. } else { 1. / 3. };
    let steps = if is_last { steps } else { 1. };
    let is_up = (place - position as f32) * steps > chance || size >= LARGEST;
    let code = count + position + i32::from(is_up);
    if IS_SIGNED {
        let code = if size * LOWEST > chance { code } else { 0 };
        // Only the positive largest has a byte.
        let negative = if code < 0x7f { code } else { 0x7f } | 0x80;
        (if number * factor < 0. && code != 0 {
            negative
        } else {
            code
        }) as u8
    } else {
        // A second moment that is not 0 stays above 0, also if the product is 0.
        let code = if number == 0. { 0 } else { code };
        (if code == 256 { 1 } else { code }) as u8
    }
}

/// Elements of a block.
pub const BLOCK: usize = 256;
/// Bytes of a whole block: its largest element, and a code for each.
const BYTES: usize = size_of::<f32>() + BLOCK;

/// The number of bytes of so many elements.
pub const fn bytes_of(elements: usize) -> usize {
    elements + size_of::<f32>() * elements.div_ceil(BLOCK)
}

/// The number of elements in so many bytes.
pub const fn elements_of(bytes: usize) -> usize {
    bytes - size_of::<f32>() * bytes.div_ceil(BYTES)
}

impl Code {
    /// Reads elements from a block's beginning on; the shorter slice decides how many.
    pub fn load(self, bytes: &[u8], into: &mut [f32]) {
        for (block, into) in bytes.chunks(BYTES).zip(into.chunks_mut(BLOCK)) {
            let Some((scale, codes)) = block.split_first_chunk() else {
                return;
            };
            let scale = f32::from_le_bytes(*scale);
            let values = self.values();
            for (into, &code) in into.iter_mut().zip(codes) {
                *into = values[usize::from(code)] * scale;
            }
        }
    }

    /// Writes elements from a block's beginning on, each as the nearest number; the shorter slice decides how many. A block with an
    /// element that is not finite becomes NaN, but an infinite second moment counts as the largest finite number.
    pub fn store(self, from: &[f32], bytes: &mut [u8]) {
        self.store_by(from, bytes, |_| 0.5);
    }

    /// The same, with a chance for each element: the part of the way between two numbers from which on it becomes the upper one.
    ///
    /// As in `wide` in src/optim/cpu/lanes.rs, but not by a closure: too large a one is not compiled into the function that enables AVX2.
    pub fn store_by(self, from: &[f32], bytes: &mut [u8], chance: impl Fn(usize) -> f32) {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2")]
            fn wide(code: Code, from: &[f32], bytes: &mut [u8], chance: impl Fn(usize) -> f32) {
                code.write(from, bytes, chance);
            }
            #[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
            fn widest(code: Code, from: &[f32], bytes: &mut [u8], chance: impl Fn(usize) -> f32) {
                code.write(from, bytes, chance);
            }
            if is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                // SAFETY: the machine has the three features that the function enables.
                return unsafe { widest(self, from, bytes, chance) };
            }
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the machine has AVX2, the only feature that the function enables.
                return unsafe { wide(self, from, bytes, chance) };
            }
        }
        self.write(from, bytes, chance);
    }

    #[inline(always)]
    fn write(self, from: &[f32], bytes: &mut [u8], chance: impl Fn(usize) -> f32) {
        let blocks = from.chunks(BLOCK).zip(bytes.chunks_mut(BYTES));
        for (start, (from, block)) in (0..).step_by(BLOCK).zip(blocks) {
            let Some((into, codes)) = block.split_first_chunk_mut() else {
                return;
            };
            let scale = self.scale_of(from);
            *into = scale.to_le_bytes();
            match scale.is_normal() {
                true => self.encode(from, 1. / scale, codes, |i| chance(start + i)),
                false => codes.fill(0),
            }
        }
    }

    /// Returns the element of largest magnitude, the positive one of two; 0 if none is a normal number, and NaN if one is not finite.
    #[inline(always)]
    fn scale_of(self, values: &[f32]) -> f32 {
        // The bits of a magnitude are in the order of magnitudes; the last bit here says that it is positive.
        let key = |value: &f32| value.to_bits() << 1 | (!value.to_bits() >> 31);
        let largest = values.iter().map(key).fold(0, u32::max);
        match f32::from_bits(largest >> 1) {
            // The square of a finite gradient may overflow.
            size if size.is_infinite() && self == Self::Unsigned => f32::MAX,
            size if !size.is_finite() => f32::NAN,
            size if size < f32::MIN_POSITIVE => 0.,
            size if largest & 1 == 1 => size,
            size => -size,
        }
    }
}

/// The form of a tensor in an optimizer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// In its own shape and this type.
    Plain(DType),
    /// In blocks of 8 bits, as one row of bytes.
    Coded(Code),
}
