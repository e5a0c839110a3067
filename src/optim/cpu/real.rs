use std::ops::{Add, Div, Mul, Neg, Sub};

use super::values::{Values, ValuesMut};

/// The types of the computation: f64 for f64 parameters, f32 for all others.
pub trait Real:
    Copy
    + Default
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + 'static
{
    /// The smallest positive normal number.
    const SMALLEST: f64;

    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
    fn sqrt(self) -> Self;
    /// ±1, 0 for 0, and NaN for NaN.
    fn sign(self) -> Self;

    /// The values, if they are of this type.
    fn of(values: Values<'_>) -> Option<&[Self]>;
    fn of_mut(values: ValuesMut<'_>) -> Option<&mut [Self]>;
    /// Converts the first values into `into`, as many as it holds.
    fn load(from: Values<'_>, into: &mut [Self]);
    /// Converts into the first values, rounded to nearest.
    fn store(from: &[Self], into: ValuesMut<'_>);
}

#[inline]
fn convert<S, D>(from: &[S], into: &mut [D], convert: impl Fn(&S) -> D) {
    for (into, from) in into.iter_mut().zip(from) {
        *into = convert(from);
    }
}

macro_rules! real {
    ($type:ty, $own:ident, $from_half:ident, $to_half:ident) => {
        impl Real for $type {
            const SMALLEST: f64 = <$type>::MIN_POSITIVE as f64;

            #[inline]
            fn from_f64(value: f64) -> Self {
                value as Self
            }

            #[inline]
            fn to_f64(self) -> f64 {
                self.into()
            }

            #[inline]
            fn sqrt(self) -> Self {
                self.sqrt()
            }

            #[inline]
            fn sign(self) -> Self {
                if self == 0. { 0. } else { self.signum() }
            }

            fn of(values: Values<'_>) -> Option<&[Self]> {
                match values {
                    Values::$own(values) => Some(values),
                    _ => None,
                }
            }

            fn of_mut(values: ValuesMut<'_>) -> Option<&mut [Self]> {
                match values {
                    ValuesMut::$own(values) => Some(values),
                    _ => None,
                }
            }

            fn load(from: Values<'_>, into: &mut [Self]) {
                use half::slice::HalfFloatSliceExt;
                let len = into.len().min(from.len());
                let Some(into) = into.get_mut(..len) else {
                    return;
                };
                match from {
                    Values::F32(from) => convert(from, into, |value| *value as Self),
                    Values::F64(from) => convert(from, into, |value| *value as Self),
                    Values::F16(from) => from.get(..len).unwrap_or_default().$from_half(into),
                    Values::BF16(from) => from.get(..len).unwrap_or_default().$from_half(into),
                }
            }

            fn store(from: &[Self], into: ValuesMut<'_>) {
                use half::slice::HalfFloatSliceExt;
                let len = from.len().min(into.len());
                let from = from.get(..len).unwrap_or_default();
                match into {
                    ValuesMut::F32(into) => convert(from, into, |value| *value as f32),
                    ValuesMut::F64(into) => convert(from, into, |value| *value as f64),
                    ValuesMut::F16(into) => into.get_mut(..len).unwrap_or_default().$to_half(from),
                    ValuesMut::BF16(into) => into.get_mut(..len).unwrap_or_default().$to_half(from),
                }
            }
        }
    };
}

real!(f32, F32, convert_to_f32_slice, convert_from_f32_slice);
real!(f64, F64, convert_to_f64_slice, convert_from_f64_slice);
