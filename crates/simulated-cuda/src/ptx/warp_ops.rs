//! Barriers, and the exchange of values between the lanes of a warp.

use super::decode::Decoder;
use super::opcode::Opcode;
use super::operand::Operand;
use super::registers::{Frame, LANES, Slot};
use super::steps::Step;
use super::types::Type;
use super::warp::Action;

/// Decodes barriers, shuffles and votes.
pub fn decode<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
) -> Result<(), String> {
    match op.name {
        "bar" | "barrier" => barrier(decoder, op, operands),
        "shfl" => shuffle(decoder, op, operands),
        "vote" => vote(decoder, op, operands),
        "activemask" => {
            let d = decoder.target(operands.first().ok_or("operands are missing")?, Type::U32)?;
            decoder.step(Box::new(move |frame: Frame, mask| {
                frame.write(d, &[mask; LANES], mask)
            }));
            Ok(())
        }
        "redux" => reduce(decoder, op, operands),
        other => Err(format!("unknown instruction {other}")),
    }
}

fn barrier<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
) -> Result<(), String> {
    op.allow(&["sync", "cta", "warp", "aligned"])?;
    if !op.has("sync") {
        return Err("an unknown barrier".to_owned());
    }
    let number = match operands.first() {
        Some(operand) => decoder.read(operand, Type::U32)?,
        None => decoder.layout.constant(0, 4),
    };
    if op.has("warp") {
        decoder.emit(Action::Together(number, Box::new(|_, _| ())));
        return Ok(());
    }
    let threads = operands
        .get(1)
        .map(|operand| decoder.read(operand, Type::U32))
        .transpose()?;
    decoder.barriers = true;
    decoder.emit(Action::Barrier(number, threads));
    Ok(())
}

fn shuffle<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
) -> Result<(), String> {
    op.allow(&["sync", "up", "down", "bfly", "idx"])?;
    if operands.len() != if op.has("sync") { 5 } else { 4 } || op.kind()? != Type::B32 {
        return Err("an unknown shuffle".to_owned());
    }
    let a = decoder.read(&operands[1], Type::B32)?;
    let [b, c] = [
        decoder.read(&operands[2], Type::U32)?,
        decoder.read(&operands[3], Type::U32)?,
    ];
    let members = match operands.get(4) {
        Some(operand) => decoder.read(operand, Type::U32)?,
        None => decoder.layout.constant(u32::MAX as u64, 4),
    };
    let (d, p) = match operands[0] {
        Operand::Pair(d, p) => (
            decoder.target_name(d, Type::B32)?,
            decoder.target_name(p, Type::Pred)?,
        ),
        ref d => (decoder.target(d, Type::B32)?, decoder.scratch(Type::Pred)),
    };
    let source: fn(i32, i32, i32, i32) -> (i32, bool) = match () {
        () if op.has("up") => |lane, by, last, _| (lane - by, lane - by >= last),
        () if op.has("down") => |lane, by, last, _| (lane + by, lane + by <= last),
        () if op.has("bfly") => |lane, by, last, _| (lane ^ by, lane ^ by <= last),
        () => |_, by, last, first| (first | by, first | by <= last),
    };
    let idx = op.has("idx");
    let step: Step = Box::new(move |frame: Frame, mask| {
        let [a, b, c] = [a, b, c].map(|slot| frame.lanes::<u32>(slot));
        let (mut out, mut within) = ([0u32; LANES], 0);
        for lane in 0..LANES {
            // The bits of `c` above the fifth cut the warp into segments; those below bound the lane within one.
            let (bound, segment) = ((c[lane] & 31) as i32, (c[lane] >> 8 & 31) as i32);
            let here = lane as i32;
            let last = (here & segment) | (bound & !segment & 31);
            let by = (b[lane] & 31) as i32;
            let by = if idx { by & !segment } else { by };
            let (from, valid) = source(here, by, last, here & segment);
            out[lane] = if valid {
                a[from as usize % LANES]
            } else {
                a[lane]
            };
            within |= (valid as u32) << lane;
        }
        frame.write(d, &out, mask);
        frame.set_mask(p, within, mask);
    });
    decoder.emit(Action::Together(members, step));
    Ok(())
}

fn vote<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
) -> Result<(), String> {
    op.allow(&["sync", "all", "any", "uni", "ballot"])?;
    let [p, members] = decoder.sources(operands, [Type::Pred, Type::U32])?;
    let kind = if op.has("ballot") {
        Type::B32
    } else {
        Type::Pred
    };
    let d = decoder.target(&operands[0], kind)?;
    let mode = op.modifiers.last().copied().unwrap_or_default().to_owned();
    let step: Step = Box::new(move |frame: Frame, mask| {
        let votes = frame.mask(p) & mask;
        let result = match mode.as_str() {
            "ballot" => return frame.write(d, &[votes; LANES], mask),
            "all" => votes == mask,
            "any" => votes != 0,
            _ => votes == mask || votes == 0,
        };
        frame.set_mask(d, if result { u32::MAX } else { 0 }, mask);
    });
    decoder.emit(Action::Together(members, step));
    Ok(())
}

fn reduce<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
) -> Result<(), String> {
    let kind = op.kind()?;
    if !matches!(kind, Type::U32 | Type::S32 | Type::B32) {
        return Err("an unknown reduction".to_owned());
    }
    let [a, members] = decoder.sources(operands, [kind, Type::U32])?;
    let d: Slot = decoder.target(&operands[0], kind)?;
    let f: fn(i64, i64) -> i64 = match op.modifiers[..] {
        ["sync", "add"] => i64::wrapping_add,
        ["sync", "min"] => i64::min,
        ["sync", "max"] => i64::max,
        ["sync", "and"] => |a, b| a & b,
        ["sync", "or"] => |a, b| a | b,
        ["sync", "xor"] => |a, b| a ^ b,
        _ => return Err("an unknown reduction".to_owned()),
    };
    let signed = kind.signed();
    let step: Step = Box::new(move |frame: Frame, mask| {
        let values = frame.lanes::<u32>(a);
        let value = |lane: usize| {
            if signed {
                values[lane] as i32 as i64
            } else {
                values[lane] as i64
            }
        };
        let result = super::memory::lanes_of(mask)
            .map(value)
            .reduce(f)
            .unwrap_or(0);
        frame.write(d, &[result as u32; LANES], mask);
    });
    decoder.emit(Action::Together(members, step));
    Ok(())
}
