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
        let all = codes.iter_mut().zip(numbers).enumerate();
        match self {
            Self::Signed => {
                all.for_each(|(i, (code, x))| *code = encode::<true>(*x, factor, chance(i)));
            }
            Self::Unsigned => {
                all.for_each(|(i, (code, x))| *code = encode::<false>(*x, factor, chance(i)));
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
