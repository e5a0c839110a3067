//! Floating-point arithmetic.

use super::decode::Decoder;
use super::float::{Float, by_float};
use super::fused;
use super::opcode::Opcode;
use super::operand::Operand;
use super::registers::Slot;
use super::rounding::{self, Rounding};
use super::steps::{Step, binary, ternary, unary};
use super::types::Type;

/// Changes to operands and results besides the operation.
#[derive(Clone, Copy)]
struct Flags {
    /// Subnormal numbers become zero.
    flush: bool,
    /// Results are clamped to [0, 1].
    saturate: bool,
    /// Negative results become zero.
    relu: bool,
}

impl Flags {
    fn none(self) -> bool {
        !(self.flush || self.saturate || self.relu)
    }

    fn before<T: Float>(self, value: T) -> T {
        if self.flush { value.flushed() } else { value }
    }

    fn after<T: Float>(self, value: T) -> T {
        let value = if self.flush { value.flushed() } else { value };
        let value = if self.saturate {
            value.saturated()
        } else {
            value
        };
        if self.relu && value < T::ZERO {
            T::ZERO
        } else {
            value
        }
    }
}

/// Suffixes without effect: the host's functions are at least as exact as the approximations.
const KNOWN: [&str; 12] = [
    "rn", "rz", "rm", "rp", "ftz", "noftz", "sat", "relu", "approx", "full", "NaN", "rna",
];

/// Decodes a floating-point instruction.
pub fn decode<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
) -> Result<(), String> {
    op.allow(&KNOWN)?;
    let kind = op.kind()?;
    let flags = Flags {
        flush: op.has("ftz") && kind != Type::F64,
        saturate: op.has("sat"),
        relu: op.has("relu"),
    };
    let target = operands.first().ok_or("operands are missing")?;
    if op.name == "testp" {
        return Err("testp is not simulated".to_owned());
    }
    let step = match operands.len() {
        2 => {
            let [a] = decoder.sources(operands, [kind])?;
            let slots = [decoder.target(target, kind)?, a];
            match kind {
                Type::F16x2 => packed1::<half::f16>(slots, op.name, flags)?,
                Type::Bf16x2 => packed1::<half::bf16>(slots, op.name, flags)?,
                _ => by_float!(kind, T => one::<T>(slots, op, flags)?),
            }
        }
        3 => {
            let [a, b] = decoder.sources(operands, [kind; 2])?;
            let slots = [decoder.target(target, kind)?, a, b];
            match kind {
                Type::F16x2 => packed2::<half::f16>(slots, op, flags)?,
                Type::Bf16x2 => packed2::<half::bf16>(slots, op, flags)?,
                _ => by_float!(kind, T => two::<T>(slots, op, flags)?),
            }
        }
        4 if matches!(op.name, "fma" | "mad") => {
            let [a, b, c] = decoder.sources(operands, [kind; 3])?;
            let slots = [decoder.target(target, kind)?, a, b, c];
            fma(slots, kind, Rounding::of(&op.modifiers), flags)?
        }
        _ => return Err(format!("unknown instruction {}", op.name)),
    };
    decoder.step(step);
    Ok(())
}

fn map1<T: Float>(
    slots: [Slot; 2],
    flags: Flags,
    f: impl Fn(T) -> T + Send + Sync + 'static,
) -> Step {
    match flags.none() {
        true => unary(slots, f),
        false => unary(slots, move |a: T| flags.after(f(flags.before(a)))),
    }
}

fn map2<T: Float>(
    slots: [Slot; 3],
    flags: Flags,
    f: impl Fn(T, T) -> T + Send + Sync + 'static,
) -> Step {
    match flags.none() {
        true => binary(slots, f),
        false => binary(slots, move |a: T, b: T| {
            flags.after(f(flags.before(a), flags.before(b)))
        }),
    }
}

/// The function of one operand.
fn function<T: Float>(name: &str) -> Option<fn(T) -> T> {
    Some(match name {
        "neg" => |a| a.negate(),
        "abs" => |a| a.magnitude(),
        "sqrt" => |a| a.apply(f64::sqrt, f32::sqrt),
        "rsqrt" => |a| a.apply(|a| 1.0 / a.sqrt(), |a| 1.0 / a.sqrt()),
        "rcp" => |a| T::ONE.div(a),
        "ex2" => |a| a.apply(f64::exp2, f32::exp2),
        "lg2" => |a| a.apply(f64::log2, f32::log2),
        "sin" => |a| a.apply(f64::sin, f32::sin),
        "cos" => |a| a.apply(f64::cos, f32::cos),
        "tanh" => |a| a.apply(f64::tanh, f32::tanh),
        _ => return None,
    })
}

fn one<T: Float>(slots: [Slot; 2], op: &Opcode, flags: Flags) -> Result<Step, String> {
    let rounding = Rounding::of(&op.modifiers);
    match op.name {
        // Separate from the table, because they are frequent and vectorize.
        "neg" => return Ok(map1(slots, flags, T::negate)),
        "abs" => return Ok(map1(slots, flags, T::magnitude)),
        "sqrt" if rounding != Rounding::Nearest => {
            return Ok(map1(slots, flags, move |a: T| {
                rounding::sqrt(a.widen(), rounding)
            }));
        }
        "rcp" if rounding != Rounding::Nearest => {
            return Ok(map1(slots, flags, move |a: T| {
                rounding::div(1.0, a.widen(), rounding)
            }));
        }
        _ => {}
    }
    let f = function::<T>(op.name).ok_or_else(|| format!("unknown instruction {}", op.name))?;
    Ok(map1(slots, flags, f))
}

fn two<T: Float>(slots: [Slot; 3], op: &Opcode, flags: Flags) -> Result<Step, String> {
    let rounding = Rounding::of(&op.modifiers);
    if rounding != Rounding::Nearest {
        return Ok(match op.name {
            "add" => map2(slots, flags, move |a: T, b: T| {
                rounding::add(a.widen(), b.widen(), rounding)
            }),
            "sub" => map2(slots, flags, move |a: T, b: T| {
                rounding::add(a.widen(), -b.widen(), rounding)
            }),
            "mul" => map2(slots, flags, move |a: T, b: T| {
                rounding::mul(a.widen(), b.widen(), rounding)
            }),
            "div" => map2(slots, flags, move |a: T, b: T| {
                rounding::div(a.widen(), b.widen(), rounding)
            }),
            _ => return Err(format!("unknown rounding of {}", op.name)),
        });
    }
    Ok(match op.name {
        "add" => map2(slots, flags, T::add),
        "sub" => map2(slots, flags, T::sub),
        "mul" => map2(slots, flags, T::mul),
        "div" => map2(slots, flags, T::div),
        "min" if op.has("NaN") => map2(slots, flags, |a: T, b: T| nan_or(a, b, T::least)),
        "max" if op.has("NaN") => map2(slots, flags, |a: T, b: T| nan_or(a, b, T::greatest)),
        "min" => map2(slots, flags, T::least),
        "max" => map2(slots, flags, T::greatest),
        "copysign" => map2(slots, flags, |a: T, b: T| {
            let size = b.magnitude();
            if a.negative() { size.negate() } else { size }
        }),
        _ => return Err(format!("unknown instruction {}", op.name)),
    })
}

/// NaN if an operand is NaN, otherwise `f`.
fn nan_or<T: Float>(a: T, b: T, f: impl Fn(T, T) -> T) -> T {
    if a.is_nan() || b.is_nan() {
        T::NAN
    } else {
        f(a, b)
    }
}

fn fma(slots: [Slot; 4], kind: Type, rounding: Rounding, flags: Flags) -> Result<Step, String> {
    match kind {
        Type::F32 if flags.none() && rounding == Rounding::Nearest => {
            return Ok(fused::fma_f32(slots));
        }
        Type::F64 if flags.none() && rounding == Rounding::Nearest => {
            return Ok(fused::fma_f64(slots));
        }
        Type::F64 if rounding != Rounding::Nearest => {
            return Err("unknown rounding of fma".to_owned());
        }
        Type::F16x2 => return Ok(packed3::<half::f16>(slots, flags)),
        Type::Bf16x2 => return Ok(packed3::<half::bf16>(slots, flags)),
        _ => {}
    }
    Ok(
        by_float!(kind, T => ternary(slots, move |a: T, b: T, c: T| {
            let [a, b, c] = [a, b, c].map(|value| flags.before(value));
            flags.after(if rounding == Rounding::Nearest { a.fma(b, c) } else { a.fma_rounded(b, c, rounding) })
        })),
    )
}

/// A float that comes in pairs.
pub trait Packed: Float {
    fn low(pair: u32) -> Self;
    fn high(pair: u32) -> Self;
    fn pair(low: Self, high: Self) -> u32;
}

macro_rules! packed {
    ($t:ty) => {
        impl Packed for $t {
            fn low(pair: u32) -> $t {
                <$t>::from_bits(pair as u16)
            }
            fn high(pair: u32) -> $t {
                <$t>::from_bits((pair >> 16) as u16)
            }
            fn pair(low: $t, high: $t) -> u32 {
                low.to_bits() as u32 | (high.to_bits() as u32) << 16
            }
        }
    };
}
packed!(half::f16);
packed!(half::bf16);

fn packed1<T: Packed>(slots: [Slot; 2], name: &str, flags: Flags) -> Result<Step, String> {
    let f = function::<T>(name).ok_or_else(|| format!("unknown instruction {name}"))?;
    let f = move |a: T| flags.after(f(flags.before(a)));
    Ok(unary(slots, move |a: u32| {
        T::pair(f(T::low(a)), f(T::high(a)))
    }))
}

fn packed2<T: Packed>(slots: [Slot; 3], op: &Opcode, flags: Flags) -> Result<Step, String> {
    let f: fn(T, T) -> T = match (op.name, op.has("NaN")) {
        ("add", _) => T::add,
        ("sub", _) => T::sub,
        ("mul", _) => T::mul,
        ("min", false) => T::least,
        ("max", false) => T::greatest,
        ("min", true) => |a, b| nan_or(a, b, T::least),
        ("max", true) => |a, b| nan_or(a, b, T::greatest),
        _ => return Err(format!("unknown instruction {}", op.name)),
    };
    let f = move |a: T, b: T| flags.after(f(flags.before(a), flags.before(b)));
    Ok(binary(slots, move |a: u32, b: u32| {
        T::pair(f(T::low(a), T::low(b)), f(T::high(a), T::high(b)))
    }))
}

fn packed3<T: Packed>(slots: [Slot; 4], flags: Flags) -> Step {
    let f =
        move |a: T, b: T, c: T| flags.after(flags.before(a).fma(flags.before(b), flags.before(c)));
    ternary(slots, move |a: u32, b: u32, c: u32| {
        T::pair(
            f(T::low(a), T::low(b), T::low(c)),
            f(T::high(a), T::high(b), T::high(c)),
        )
    })
}
