//! Conversions.

use super::arithmetic::Packed;
use super::decode::Decoder;
use super::float::{Float, by_float};
use super::fp8::{E4M3, E5M2};
use super::integer_ops::Integer;
use super::opcode::Opcode;
use super::operand::Operand;
use super::registers::Slot;
use super::rounding::{Narrow, Rounding, directed};
use super::steps::{Step, binary, unary};
use super::types::Type;

/// Like `by_integer`, and with 8 bits.
macro_rules! by_any_integer {
    ($kind:expr, $t:ident => $body:expr) => {
        match $kind {
            Type::U8 | Type::B8 => {
                type $t = u8;
                $body
            }
            Type::S8 => {
                type $t = i8;
                $body
            }
            Type::U16 | Type::B16 => {
                type $t = u16;
                $body
            }
            Type::S16 => {
                type $t = i16;
                $body
            }
            Type::U32 | Type::B32 | Type::F32 => {
                type $t = u32;
                $body
            }
            Type::S32 => {
                type $t = i32;
                $body
            }
            Type::U64 | Type::B64 | Type::F64 => {
                type $t = u64;
                $body
            }
            Type::S64 => {
                type $t = i64;
                $body
            }
            other => return Err(format!("not an integer type: {other:?}")),
        }
    };
}

/// Widens or narrows a register, for a load, store or conversion whose type has another width than its register.
pub fn resize(slots: [Slot; 2], from: Type, to: Type) -> Result<Step, String> {
    let plain = |kind: Type| {
        if kind.signed() {
            kind
        } else {
            Type::bits(kind.bytes())
        }
    };
    Ok(
        by_any_integer!(plain(from), S => by_any_integer!(plain(to), D => unary(slots, |a: S| a as D))),
    )
}

/// Decodes `cvt`.
pub fn decode<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
) -> Result<(), String> {
    op.allow(&[
        "rn",
        "rz",
        "rm",
        "rp",
        "rni",
        "rzi",
        "rmi",
        "rpi",
        "sat",
        "satfinite",
        "ftz",
        "relu",
    ])?;
    let [to, from] = op.types[..] else {
        return Err("two types are needed".to_owned());
    };
    if to.packed() || from.packed() || matches!(to, Type::E4m3x2 | Type::E5m2x2) {
        return pairs(decoder, op, operands, to, from);
    }
    let [a] = decoder.sources(operands, [from])?;
    let slots = [
        decoder.target(operands.first().ok_or("operands are missing")?, to)?,
        a,
    ];
    let rounding = Rounding::of(&op.modifiers);
    let (saturate, flush) = (op.has("sat"), op.has("ftz"));
    let step = match (from.float(), to.float()) {
        (false, false) if saturate => by_any_integer!(from, S => by_any_integer!(to, D => {
            unary(slots, |a: S| <D as Integer>::clamped(a as i128))
        })),
        (false, false) => resize(slots, from, to)?,
        (false, true) => by_any_integer!(from, S => by_float!(to, D => {
            unary(slots, move |a: S| from_integer::<D>(a as i128, rounding))
        })),
        (true, false) => {
            let wide = from == Type::F64 || matches!(to, Type::S64 | Type::U64);
            let round = integral(op);
            by_float!(from, S => by_any_integer!(to, D => unary(slots, move |a: S| {
                let a = if flush { a.flushed() } else { a };
                match a.widen() {
                    // For 64 bits, the result has only the highest bit set.
                    a if a.is_nan() => if wide { (1 as D) << (D::BITS - 1) } else { 0 },
                    a => round(a) as D,
                }
            })))
        }
        (true, true) => floats(slots, op, from, to)?,
    };
    decoder.step(step);
    Ok(())
}

/// The rounding to an integer that the suffixes specify.
fn integral(op: &Opcode) -> fn(f64) -> f64 {
    match () {
        () if op.has("rni") => f64::round_ties_even,
        () if op.has("rmi") => f64::floor,
        () if op.has("rpi") => f64::ceil,
        () => f64::trunc,
    }
}

fn from_integer<T: Narrow>(value: i128, rounding: Rounding) -> T {
    let wide = value as f64;
    if rounding == Rounding::Nearest && size_of::<T>() == 8 {
        return T::nearest(wide);
    }
    // The rounding error of the 64-bit float decides how a narrower type rounds.
    let lost = (value - wide as i128) as f64;
    if lost == 0.0 || rounding != Rounding::Nearest {
        return directed(wide, lost, rounding);
    }
    let odd = f64::from_bits(wide.to_bits() | 1);
    T::nearest(if (wide.to_bits() & 1) == 1 {
        wide
    } else if (lost > 0.0) == (wide > 0.0) {
        odd
    } else {
        f64::from_bits(wide.to_bits() - 1)
    })
}

fn floats(slots: [Slot; 2], op: &Opcode, from: Type, to: Type) -> Result<Step, String> {
    let rounding = Rounding::of(&op.modifiers);
    let whole = ["rni", "rzi", "rmi", "rpi"]
        .iter()
        .any(|name| op.has(name))
        .then(|| integral(op));
    let (saturate, flush, relu) = (op.has("sat"), op.has("ftz"), op.has("relu"));
    let plain = rounding == Rounding::Nearest && whole.is_none() && !saturate && !flush && !relu;
    // The frequent ones are separate, because they vectorize.
    match (from, to) {
        (Type::F32, Type::F64) if plain => return Ok(unary(slots, |a: f32| a as f64)),
        (Type::F64, Type::F32) if plain => return Ok(unary(slots, |a: f64| a as f32)),
        (Type::Bf16, Type::F32) if plain => return Ok(unary(slots, |a: u16| (a as u32) << 16)),
        (Type::F16, Type::F32) if plain => return Ok(unary(slots, half::f16::to_f32)),
        _ => {}
    }
    Ok(
        by_float!(from, S => by_float!(to, D => unary(slots, move |a: S| {
            let a = if flush { a.flushed() } else { a };
            let wide = whole.map_or(a.widen(), |round| round(a.widen()));
            let result: D = directed(wide, 0.0, rounding);
            let result = if flush { result.flushed() } else { result };
            let result = if saturate { result.saturated() } else { result };
            if relu && result < D::ZERO { D::ZERO } else { result }
        }))),
    )
}

/// Conversions between pairs of values.
fn pairs<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
    to: Type,
    from: Type,
) -> Result<(), String> {
    if op.has("relu") || !op.has("rn") {
        return Err("an unknown conversion of pairs".to_owned());
    }
    let target = operands.first().ok_or("operands are missing")?;
    let step = match (to, from) {
        (Type::F16x2 | Type::Bf16x2, Type::F32) => {
            let [a, b] = decoder.sources(operands, [Type::F32; 2])?;
            let slots = [decoder.target(target, to)?, a, b];
            match to {
                Type::F16x2 => binary(slots, |a: f32, b: f32| join::<half::f16>(b, a)),
                _ => binary(slots, |a: f32, b: f32| join::<half::bf16>(b, a)),
            }
        }
        (Type::E4m3x2 | Type::E5m2x2, Type::F32) => {
            let format = if to == Type::E4m3x2 { E4M3 } else { E5M2 };
            let [a, b] = decoder.sources(operands, [Type::F32; 2])?;
            let slots = [decoder.target(target, to)?, a, b];
            binary(slots, move |a: f32, b: f32| {
                (format.encode(a) as u16) << 8 | format.encode(b) as u16
            })
        }
        (Type::F16x2, Type::E4m3x2 | Type::E5m2x2) => {
            let format = if from == Type::E4m3x2 { E4M3 } else { E5M2 };
            let [a] = decoder.sources(operands, [from])?;
            let slots = [decoder.target(target, to)?, a];
            unary(slots, move |a: u16| {
                join::<half::f16>(format.decode(a as u8), format.decode((a >> 8) as u8))
            })
        }
        (Type::E4m3x2 | Type::E5m2x2, Type::F16x2) => {
            let format = if to == Type::E4m3x2 { E4M3 } else { E5M2 };
            let [a] = decoder.sources(operands, [from])?;
            let slots = [decoder.target(target, to)?, a];
            unary(slots, move |a: u32| {
                let [low, high] = [half::f16::low(a), half::f16::high(a)]
                    .map(|half| format.encode(half.to_f32()) as u16);
                high << 8 | low
            })
        }
        _ => return Err("an unknown conversion of pairs".to_owned()),
    };
    decoder.step(step);
    Ok(())
}

fn join<T: Packed>(low: f32, high: f32) -> u32 {
    T::pair(T::nearest(low as f64), T::nearest(high as f64))
}
