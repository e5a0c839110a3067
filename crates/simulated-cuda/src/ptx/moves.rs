//! Copies of registers and selections between them.

use super::decode::Decoder;
use super::float::Float;
use super::opcode::Opcode;
use super::operand::Operand;
use super::registers::{Frame, LANES};
use super::space::{LOCAL_TAG, SHARED_TAG};
use super::steps::{binary, copy, masks, select, test, unary};
use super::types::Type;

/// Decodes `mov`, `cvta`, `selp` and `slct`.
pub fn decode<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
) -> Result<(), String> {
    let kind = op.kind()?;
    let whole = matches!(operands, [Operand::Word { .. }, Operand::Word { .. }]);
    if kind == Type::Pred && !(op.name == "mov" && whole) {
        return Err("a predicate where a number is needed".to_owned());
    }
    let target = operands.first().ok_or("operands are missing")?;
    match op.name {
        "cvta" => return address(decoder, op, operands, kind),
        "selp" => {
            op.allow(&[])?;
            let [a, b, p] = decoder.sources(operands, [kind, kind, Type::Pred])?;
            let d = decoder.target(target, kind)?;
            decoder.step(select([d, a, b, p], kind.bytes()));
            return Ok(());
        }
        "slct" => {
            op.allow(&["ftz"])?;
            let chooser = *op.types.get(1).ok_or("two types are needed")?;
            let [a, b, c] = decoder.sources(operands, [kind, kind, chooser])?;
            let p = decoder.scratch(Type::Pred);
            match chooser {
                Type::F32 => decoder.step(test([p, c, c], |c: f32, _| c.flushed() >= 0.0)),
                _ => decoder.step(test([p, c, c], |c: i32, _| c >= 0)),
            }
            let d = decoder.target(target, kind)?;
            decoder.step(select([d, a, b, p], kind.bytes()));
            return Ok(());
        }
        _ => op.allow(&[])?,
    }
    match operands {
        [Operand::Vector(parts), source] => split(decoder, parts, source, kind),
        [target, Operand::Vector(parts)] => join(decoder, target, parts, kind),
        [_, _] if kind == Type::Pred => {
            let [a] = decoder.sources(operands, [kind])?;
            let d = decoder.target(target, kind)?;
            decoder.step(masks([d, a, a], |a, _| a));
            Ok(())
        }
        _ => {
            let [a] = decoder.sources(operands, [kind])?;
            let d = decoder.target(target, kind)?;
            decoder.step(copy([d, a], kind.bytes()));
            Ok(())
        }
    }
}

/// Converts between generic addresses and those of one state space.
fn address<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
    kind: Type,
) -> Result<(), String> {
    op.allow(&["to", "global", "shared", "shared::cta", "local", "const"])?;
    let space = op.modifiers.last().copied().unwrap_or_default();
    let tag = match space {
        "shared" | "shared::cta" => SHARED_TAG,
        "local" => LOCAL_TAG,
        _ => 0,
    };
    if kind.bytes() != 8 {
        return Err("32-bit addresses".to_owned());
    }
    let [a] = decoder.sources(operands, [kind])?;
    let slots = [decoder.target(&operands[0], kind)?, a];
    decoder.step(match (tag, op.has("to")) {
        (0, _) => copy(slots, 8),
        (tag, true) => unary(slots, move |a: u64| a & !tag),
        (tag, false) => unary(slots, move |a: u64| a | tag),
    });
    Ok(())
}

/// `{a, b} = source`: the lowest bits go first.
fn split<'m>(
    decoder: &mut Decoder<'m>,
    parts: &[Operand<'m>],
    source: &Operand<'m>,
    kind: Type,
) -> Result<(), String> {
    let source = decoder.read(source, kind)?;
    let bytes = part_bytes(kind, parts.len())?;
    // All are read before any is written, because a part may be the source itself.
    let all = decoder.scratch(kind);
    decoder.step(copy([all, source], kind.bytes()));
    for (index, part) in parts.iter().enumerate() {
        let shift = 8 * bytes * index;
        let slots = [decoder.target(part, Type::bits(bytes))?, all];
        decoder.step(match (kind.bytes(), bytes) {
            (8, 4) => unary(slots, move |a: u64| (a >> shift) as u32),
            (8, 2) => unary(slots, move |a: u64| (a >> shift) as u16),
            (4, 2) => unary(slots, move |a: u32| (a >> shift) as u16),
            (4, 1) => unary(slots, move |a: u32| (a >> shift) as u8),
            _ => unary(slots, move |a: u16| (a >> shift) as u8),
        });
    }
    Ok(())
}

/// `target = {a, b}`.
fn join<'m>(
    decoder: &mut Decoder<'m>,
    target: &Operand<'m>,
    parts: &[Operand<'m>],
    kind: Type,
) -> Result<(), String> {
    let bytes = part_bytes(kind, parts.len())?;
    let mut slots = Vec::new();
    for part in parts {
        slots.push(decoder.read(part, Type::bits(bytes))?);
    }
    let d = decoder.target(target, kind)?;
    if let ([low, high], 8) = (&slots[..], kind.bytes()) {
        decoder.step(binary([d, *low, *high], |low: u32, high: u32| {
            low as u64 | (high as u64) << 32
        }));
        return Ok(());
    }
    let wide = kind.bytes();
    decoder.step(Box::new(move |frame: Frame, mask| {
        let mut all = [0u64; LANES];
        for (index, slot) in slots.iter().enumerate() {
            for (lane, all) in all.iter_mut().enumerate() {
                let part = match bytes {
                    1 => frame.lane::<u8>(*slot, lane) as u64,
                    2 => frame.lane::<u16>(*slot, lane) as u64,
                    _ => frame.lane::<u32>(*slot, lane) as u64,
                };
                *all |= part << (8 * bytes * index);
            }
        }
        match wide {
            2 => frame.write(d, &all.map(|value| value as u16), mask),
            4 => frame.write(d, &all.map(|value| value as u32), mask),
            _ => frame.write(d, &all, mask),
        }
    }));
    Ok(())
}

fn part_bytes(kind: Type, parts: usize) -> Result<usize, String> {
    match (kind.bytes(), parts) {
        (2 | 4 | 8, 2) => Ok(kind.bytes() / 2),
        (4 | 8, 4) => Ok(kind.bytes() / 4),
        _ => Err("an unknown vector".to_owned()),
    }
}
