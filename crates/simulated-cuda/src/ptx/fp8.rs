//! Floats of 8 bits.

use super::rounding::to_odd;

/// A layout of 8-bit floats.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Bits of the fraction.
    fraction: u32,
    bias: i32,
    /// The largest finite value.
    largest: f32,
    /// The code of the largest finite value.
    largest_code: u8,
}

/// Four exponent bits; one NaN, no infinity.
pub const E4M3: Format = Format {
    fraction: 3,
    bias: 7,
    largest: 448.0,
    largest_code: 0x7e,
};

/// Five exponent bits; infinities and NaNs as in IEEE 754.
pub const E5M2: Format = Format {
    fraction: 2,
    bias: 15,
    largest: 57344.0,
    largest_code: 0x7b,
};

impl Format {
    /// The code nearest to a value, ties to even; a value that is too large becomes the largest finite one.
    pub fn encode(self, value: f32) -> u8 {
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let size = value.abs();
        if value.is_nan() {
            return 0x7f;
        }
        if size >= self.largest {
            return sign | self.largest_code;
        }
        // The distance between neighbouring codes is a power of two; the rounding of the quotient is that of the code.
        let exponent = ((size.to_bits() >> 23) as i32 - 127).max(1 - self.bias);
        let step = 2f64.powi(exponent - self.fraction as i32);
        let units = (size as f64 / step).round_ties_even() as u32;
        // A subnormal's units are its code; otherwise the leading one is hidden, and a carry moves into the exponent.
        let code = units + (((exponent + self.bias - 1) as u32) << self.fraction);
        sign | code.min(self.largest_code as u32) as u8
    }

    /// The value of a code.
    pub fn decode(self, code: u8) -> f32 {
        let sign = if code & 0x80 != 0 { -1.0 } else { 1.0 };
        let code = code & 0x7f;
        if code > self.largest_code {
            let infinite = self.fraction == 2 && code == 0x7c;
            return if infinite {
                sign * f32::INFINITY
            } else {
                f32::NAN
            };
        }
        let fraction = (code & ((1 << self.fraction) - 1)) as f64;
        let exponent = (code >> self.fraction) as i32;
        let whole = (1 << self.fraction) as f64;
        let value = match exponent {
            0 => fraction * 2f64.powi(1 - self.bias - self.fraction as i32),
            _ => (1.0 + fraction / whole) * 2f64.powi(exponent - self.bias),
        };
        sign * to_odd(value)
    }
}
