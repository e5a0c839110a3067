//! Operations on bits.

use super::decode::Decoder;
use super::integer_ops::{Integer, by_integer};
use super::opcode::Opcode;
use super::operand::Operand;
use super::steps::{binary, masks, ternary, unary};
use super::types::Type;

/// Decodes an operation on bits.
pub fn decode<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
) -> Result<(), String> {
    op.allow(&["l", "r", "wrap", "clamp", "shiftamt"])?;
    let kind = op.kind()?;
    let target = operands.first().ok_or("operands are missing")?;
    let step = match op.name {
        "and" | "or" | "xor" => {
            let [a, b] = decoder.sources(operands, [kind; 2])?;
            let slots = [decoder.target(target, kind)?, a, b];
            match (op.name, kind) {
                ("and", Type::Pred) => masks(slots, |a, b| a & b),
                ("or", Type::Pred) => masks(slots, |a, b| a | b),
                (_, Type::Pred) => masks(slots, |a, b| a ^ b),
                ("and", _) => by_integer!(kind, T => binary(slots, |a: T, b: T| a & b)),
                ("or", _) => by_integer!(kind, T => binary(slots, |a: T, b: T| a | b)),
                _ => by_integer!(kind, T => binary(slots, |a: T, b: T| a ^ b)),
            }
        }
        "not" | "cnot" | "brev" => {
            let [a] = decoder.sources(operands, [kind])?;
            let d = decoder.target(target, kind)?;
            match (op.name, kind) {
                ("not", Type::Pred) => masks([d, a, a], |a, _| !a),
                ("not", _) => by_integer!(kind, T => unary([d, a], |a: T| !a)),
                ("cnot", _) => by_integer!(kind, T => unary([d, a], |a: T| (a == 0) as T)),
                _ => by_integer!(kind, T => unary([d, a], <T as Integer>::reversed)),
            }
        }
        "clz" | "popc" | "bfind" => {
            let [a] = decoder.sources(operands, [kind])?;
            let slots = [decoder.target(target, Type::U32)?, a];
            let shift = op.has("shiftamt");
            by_integer!(kind, T => match op.name {
                "clz" => unary(slots, <T as Integer>::leading),
                "popc" => unary(slots, <T as Integer>::ones),
                _ => unary(slots, move |a: T| {
                    let a = if a.to_i128() < 0 { !a } else { a };
                    let zeros = a.leading();
                    match (zeros == T::BITS, shift) {
                        (true, _) => u32::MAX,
                        (false, true) => zeros,
                        (false, false) => T::BITS - 1 - zeros,
                    }
                }),
            })
        }
        "shl" | "shr" => {
            let [a, b] = decoder.sources(operands, [kind, Type::U32])?;
            let slots = [decoder.target(target, kind)?, a, b];
            by_integer!(kind, T => match op.name {
                "shl" => binary(slots, <T as Integer>::shift_left),
                _ => binary(slots, <T as Integer>::shift_right),
            })
        }
        "shf" => {
            let [a, b, c] = decoder.sources(operands, [Type::B32; 3])?;
            let slots = [decoder.target(target, Type::B32)?, a, b, c];
            let (left, wraps) = (op.has("l"), op.has("wrap"));
            ternary(slots, move |low: u32, high: u32, by: u32| {
                let both = (high as u64) << 32 | low as u64;
                let by = if wraps { by & 31 } else { by.min(32) };
                if left {
                    (both << by >> 32) as u32
                } else {
                    (both >> by) as u32
                }
            })
        }
        "bfe" => {
            let [a, b, c] = decoder.sources(operands, [kind, Type::U32, Type::U32])?;
            let slots = [decoder.target(target, kind)?, a, b, c];
            let signed = kind.signed();
            by_integer!(kind, T => ternary(slots, move |a: T, from: u32, count: u32| {
                let (from, count) = (from & 0xff, count & 0xff);
                if count == 0 {
                    return 0;
                }
                // Beyond the highest bit, the field repeats the sign.
                let field = (a as i128) >> from.min(127);
                let unused = 128 - count.min(T::BITS);
                <T as Integer>::from_i128(if signed {
                    field << unused >> unused
                } else {
                    ((field as u128) << unused >> unused) as i128
                })
            }))
        }
        "bfi" => {
            if operands.len() != 5 {
                return Err("five operands are needed".to_owned());
            }
            let count = decoder.read(&operands[4], Type::U32)?;
            let [a, b, from] = decoder.sources(&operands[..4], [kind, kind, Type::U32])?;
            let d = decoder.target(target, kind)?;
            // One register holds both numbers: the position in the low byte, the length above.
            let field = decoder.scratch(Type::U32);
            decoder_field(decoder, [field, from, count]);
            by_integer!(kind, T => ternary([d, a, b, field], |a: T, b: T, field: u32| {
                let (from, count) = (field & 0xff, field >> 8);
                let ones = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
                let mask = if from >= 64 { 0 } else { ones << from } as T;
                (b & !mask) | (<T as Integer>::shift_left(a, from) & mask)
            }))
        }
        "lop3" => {
            let table = operands
                .get(4)
                .and_then(|operand| operand.immediate(Type::B32))
                .ok_or("a table is missing")?;
            let [a, b, c] = decoder.sources(&operands[..4], [kind; 3])?;
            let slots = [decoder.target(target, kind)?, a, b, c];
            ternary(slots, move |a: u32, b: u32, c: u32| {
                (0..8u32)
                    .filter(|row| table >> row & 1 == 1)
                    .fold(0, |all, row| {
                        let pick =
                            |value: u32, bit: u32| if row & bit != 0 { value } else { !value };
                        all | (pick(a, 4) & pick(b, 2) & pick(c, 1))
                    })
            })
        }
        "prmt" => {
            let [a, b, c] = decoder.sources(operands, [Type::B32; 3])?;
            let slots = [decoder.target(target, Type::B32)?, a, b, c];
            ternary(slots, |a: u32, b: u32, choice: u32| {
                let bytes = ((b as u64) << 32 | a as u64).to_le_bytes();
                let picked: [u8; 4] = std::array::from_fn(|index| {
                    let choice = choice >> (4 * index);
                    let byte = bytes[(choice & 7) as usize];
                    if choice & 8 != 0 {
                        ((byte as i8) >> 7) as u8
                    } else {
                        byte
                    }
                });
                u32::from_le_bytes(picked)
            })
        }
        other => return Err(format!("unknown instruction {other}")),
    };
    decoder.step(step);
    Ok(())
}

/// Joins the position and the length of a bit field in one register.
fn decoder_field(decoder: &mut Decoder, slots: [super::registers::Slot; 3]) {
    decoder.step(binary(slots, |from: u32, count: u32| {
        (from & 0xff) | (count & 0xff) << 8
    }));
}
