//! Integer arithmetic.

use super::decode::Decoder;
use super::integer_ops::{Integer, by_integer};
use super::opcode::Opcode;
use super::operand::Operand;
use super::registers::{Frame, LANES, Slot};
use super::steps::{Step, binary, ternary, unary};
use super::types::Type;

/// Decodes an integer instruction.
pub fn decode<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
) -> Result<(), String> {
    let unknown = || format!("unknown instruction {}", op.name);
    let kind = op.kind().map_err(|_| unknown())?;
    match op.name {
        "addc" | "subc" | "madc" => return carried(decoder, op, operands, kind),
        "add" | "sub" | "mad" if op.has("cc") => return carried(decoder, op, operands, kind),
        "mul" | "mad" | "mul24" | "mad24" => return product(decoder, op, operands, kind),
        _ => {}
    }
    let target = operands.first().ok_or("operands are missing")?;
    let step = match op.name {
        "neg" | "abs" => {
            op.allow(&[])?;
            let [a] = decoder.sources(operands, [kind])?;
            let d = decoder.target(target, kind)?;
            by_integer!(kind, T => match op.name {
                "neg" => unary([d, a], <T as Integer>::neg),
                _ => unary([d, a], <T as Integer>::abs),
            })
        }
        "add" | "sub" | "div" | "rem" | "min" | "max" => {
            op.allow(&["sat"])?;
            let [a, b] = decoder.sources(operands, [kind; 2])?;
            let slots = [decoder.target(target, kind)?, a, b];
            by_integer!(kind, T => match (op.name, op.has("sat")) {
                ("add", false) => binary(slots, <T as Integer>::add),
                ("sub", false) => binary(slots, <T as Integer>::sub),
                ("add", true) => binary(slots, <T as Integer>::add_saturated),
                ("sub", true) => binary(slots, <T as Integer>::sub_saturated),
                ("div", _) => binary(slots, <T as Integer>::div),
                ("rem", _) => binary(slots, <T as Integer>::rem),
                ("min", _) => binary(slots, |a: T, b: T| a.min(b)),
                _ => binary(slots, |a: T, b: T| a.max(b)),
            })
        }
        "sad" => {
            let [a, b, c] = decoder.sources(operands, [kind; 3])?;
            let slots = [decoder.target(target, kind)?, a, b, c];
            by_integer!(kind, T => ternary(slots, |a: T, b: T, c: T| {
                c.wrapping_add(if a > b { a.wrapping_sub(b) } else { b.wrapping_sub(a) })
            }))
        }
        "dp4a" => dot(decoder, op, operands)?,
        _ => return Err(unknown()),
    };
    decoder.step(step);
    Ok(())
}

/// Products, with or without a sum.
fn product<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
    kind: Type,
) -> Result<(), String> {
    op.allow(&["lo", "hi", "wide"])?;
    let wide = match (op.has("wide"), kind) {
        (false, _) => kind,
        (true, Type::U16) => Type::U32,
        (true, Type::S16) => Type::S32,
        (true, Type::U32) => Type::U64,
        (true, Type::S32) => Type::S64,
        _ => return Err("a product too wide".to_owned()),
    };
    let sums = op.name.starts_with("mad");
    let (a, b, c) = if sums {
        let [a, b, c] = decoder.sources(operands, [kind, kind, wide])?;
        (a, b, c)
    } else {
        let [a, b] = decoder.sources(operands, [kind; 2])?;
        (a, b, a)
    };
    let d = decoder.target(&operands[0], wide)?;
    if op.name.ends_with("24") {
        decoder.step(narrow_product([d, a, b, c], op, kind, sums)?);
        return Ok(());
    }
    let step = match (op.has("wide"), op.has("hi"), sums) {
        (true, _, false) => match kind {
            Type::U16 => binary([d, a, b], |a: u16, b: u16| a as u32 * b as u32),
            Type::S16 => binary([d, a, b], |a: i16, b: i16| a as i32 * b as i32),
            Type::U32 => binary([d, a, b], |a: u32, b: u32| a as u64 * b as u64),
            _ => binary([d, a, b], |a: i32, b: i32| a as i64 * b as i64),
        },
        (true, _, true) => match kind {
            Type::U16 => ternary([d, a, b, c], |a: u16, b: u16, c: u32| {
                (a as u32 * b as u32).wrapping_add(c)
            }),
            Type::S16 => ternary([d, a, b, c], |a: i16, b: i16, c: i32| {
                (a as i32 * b as i32).wrapping_add(c)
            }),
            Type::U32 => ternary([d, a, b, c], |a: u32, b: u32, c: u64| {
                (a as u64 * b as u64).wrapping_add(c)
            }),
            _ => ternary([d, a, b, c], |a: i32, b: i32, c: i64| {
                (a as i64 * b as i64).wrapping_add(c)
            }),
        },
        (false, false, false) => by_integer!(kind, T => binary([d, a, b], <T as Integer>::mul)),
        (false, true, false) => by_integer!(kind, T => binary([d, a, b], <T as Integer>::mul_high)),
        (false, false, true) => by_integer!(kind, T => {
            ternary([d, a, b, c], |a: T, b: T, c: T| a.wrapping_mul(b).wrapping_add(c))
        }),
        (false, true, true) => by_integer!(kind, T => {
            ternary([d, a, b, c], |a: T, b: T, c: T| a.mul_high(b).wrapping_add(c))
        }),
    };
    decoder.step(step);
    Ok(())
}

/// Products of the lowest 24 bits.
fn narrow_product(slots: [Slot; 4], op: &Opcode, kind: Type, sums: bool) -> Result<Step, String> {
    let shift = if op.has("hi") { 16 } else { 0 };
    match kind {
        Type::U32 => Ok(ternary(slots, move |a: u32, b: u32, c: u32| {
            let product = ((a & 0xff_ffff) as u64 * (b & 0xff_ffff) as u64) >> shift;
            (product as u32).wrapping_add(if sums { c } else { 0 })
        })),
        Type::S32 => Ok(ternary(slots, move |a: i32, b: i32, c: i32| {
            let product = ((a << 8 >> 8) as i64 * (b << 8 >> 8) as i64) >> shift;
            (product as i32).wrapping_add(if sums { c } else { 0 })
        })),
        _ => Err("an unknown type".to_owned()),
    }
}

/// The sum of the products of four pairs of bytes.
fn dot<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
) -> Result<Step, String> {
    let signed = |index: usize| op.types.get(index).is_some_and(|kind| kind.signed());
    let (left, right) = (signed(0), signed(1));
    let [a, b, c] = decoder.sources(operands, [Type::B32; 3])?;
    let d = decoder.target(&operands[0], Type::B32)?;
    let byte = |value: u32, index: u32, signed: bool| {
        let byte = (value >> (8 * index)) as u8;
        if signed {
            byte as i8 as i32
        } else {
            byte as i32
        }
    };
    Ok(ternary([d, a, b, c], move |a: u32, b: u32, c: u32| {
        (0..4).fold(c, |sum, index| {
            sum.wrapping_add((byte(a, index, left) * byte(b, index, right)) as u32)
        })
    }))
}

/// Additions, subtractions and products that read or write the carry flag.
fn carried<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
    kind: Type,
) -> Result<(), String> {
    op.allow(&["lo", "hi", "cc"])?;
    let (takes, gives) = (op.name.ends_with('c'), op.has("cc"));
    let carry = decoder.carry();
    let (a, b, c) = if op.name.starts_with("mad") {
        let [a, b, c] = decoder.sources(operands, [kind; 3])?;
        (a, b, c)
    } else {
        let [a, b] = decoder.sources(operands, [kind; 2])?;
        (a, b, a)
    };
    let slots = [decoder.target(&operands[0], kind)?, a, b, c];
    let high = op.has("hi");
    let step: Step = by_integer!(kind, T => match op.name {
        "add" | "addc" => with_carry::<T>(slots, carry, takes, gives, |a, b, _, carry| bits(a) + bits(b) + carry),
        "sub" | "subc" => with_carry::<T>(slots, carry, takes, gives, |a, b, _, carry| bits(a) - bits(b) - carry),
        _ => with_carry::<T>(slots, carry, takes, gives, move |a, b, c, carry| {
            let part = if high { a.mul_high(b) } else { a.wrapping_mul(b) };
            bits(part) + bits(c) + carry
        }),
    });
    decoder.step(step);
    Ok(())
}

/// The bits of a number as an unsigned one.
fn bits<T: Integer>(value: T) -> i128 {
    value.to_i128() & ((1 << T::BITS) - 1)
}

fn with_carry<T: Integer>(
    [d, a, b, c]: [Slot; 4],
    carry: Slot,
    takes: bool,
    gives: bool,
    f: impl Fn(T, T, T, i128) -> i128 + Send + Sync + 'static,
) -> Step {
    Box::new(move |frame: Frame, mask| {
        let (a, b, c) = (
            frame.lanes::<T>(a),
            frame.lanes::<T>(b),
            frame.lanes::<T>(c),
        );
        let flags = if takes { frame.mask(carry) } else { 0 };
        let (mut out, mut set) = ([T::default(); LANES], 0);
        for lane in 0..LANES {
            let result = f(a[lane], b[lane], c[lane], (flags >> lane & 1) as i128);
            out[lane] = T::from_i128(result);
            // The bit above the result: a carry, or for a negative difference, a borrow.
            set |= ((result >> T::BITS & 1) as u32) << lane;
        }
        frame.write(d, &out, mask);
        if gives {
            frame.set_mask(carry, set, mask);
        }
    })
}
