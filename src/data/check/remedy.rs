use candle_core::DType;

use super::bounds::Bounds;

/// What to do about a tensor of another dtype.
pub fn dtype(found: DType, expected: DType) -> String {
    let call = format!("call `.to_dtype(DType::{expected:?})`");
    match (found, expected) {
        (DType::U8, _) if expected.is_float() => format!("{call}, and divide pixels by 255"),
        (DType::F64, DType::F32) => format!("{call}, or make it of `f32` numbers"),
        _ if found.is_float() && expected.is_int() => {
            format!("{call} if its values are whole numbers")
        }
        _ => call,
    }
}

/// What to do about an integer outside of its range; `lowest` is the smallest one that counts.
pub fn integer(value: i64, lowest: i64, bounds: &Bounds, largest: i64) -> String {
    let first = bounds.first();
    let second = first.and_then(|first| first.checked_add(1));
    if bounds.end() == Some(value) && second == Some(lowest) {
        format!("they seem to count from {lowest}: subtract 1")
    } else if value == largest || first.is_some_and(|first| value < first) {
        format!("call `.ignore({value})` if it marks what does not count")
    } else {
        "the range must cover all classes, or the whole vocabulary with its added tokens".to_owned()
    }
}

/// What to do about a floating-point number outside of its range, if it is plain.
pub fn float(value: f64, bounds: &Bounds) -> Option<String> {
    let is_pixel = bounds.end() == Some(2) && (1. ..=255.).contains(&value);
    is_pixel.then(|| "divide pixels by 255".to_owned())
}
