//! Comparisons.

use super::decode::Decoder;
use super::float::{Float, by_float};
use super::integer_ops::by_integer;
use super::opcode::Opcode;
use super::operand::Operand;
use super::registers::{Slot, Word};
use super::steps::{Step, masks, select, test};
use super::types::Type;

/// Decodes `setp` and `set`.
pub fn decode<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
) -> Result<(), String> {
    let comparison = op.modifiers.first().ok_or("a comparison is missing")?;
    let combination = op
        .modifiers
        .iter()
        .find(|text| matches!(**text, "and" | "or" | "xor"));
    let kind = *op.types.last().ok_or("a type suffix is missing")?;
    if let Some(unknown) = op.modifiers[1..]
        .iter()
        .find(|text| !matches!(**text, "and" | "or" | "xor" | "ftz"))
    {
        return Err(format!("unknown suffix .{unknown}"));
    }
    if operands.len() != if combination.is_some() { 4 } else { 3 } {
        return Err("a wrong number of operands".to_owned());
    }
    let [a, b] = [
        decoder.read(&operands[1], kind)?,
        decoder.read(&operands[2], kind)?,
    ];
    let simple = op.name == "setp" && combination.is_none() && operands[0].name().is_some();
    let result = if simple {
        decoder.target(&operands[0], Type::Pred)?
    } else {
        decoder.scratch(Type::Pred)
    };
    let step = comparison_step([result, a, b], comparison, kind, op.has("ftz"))?;
    if simple {
        decoder.step(step);
        return Ok(());
    }
    decoder.step(step);
    // The second predicate of a pair is that of the opposite comparison.
    let opposite = decoder.scratch(Type::Pred);
    decoder.step(masks([opposite, result, result], |a, _| !a));
    let (mut first, mut second) = (result, opposite);
    if let Some(combination) = combination {
        let other = decoder.read(&operands[3], Type::Pred)?;
        let f: fn(u32, u32) -> u32 = match *combination {
            "and" => |a, b| a & b,
            "or" => |a, b| a | b,
            _ => |a, b| a ^ b,
        };
        (first, second) = (decoder.scratch(Type::Pred), decoder.scratch(Type::Pred));
        decoder.step(masks([first, result, other], f));
        decoder.step(masks([second, opposite, other], f));
    }
    if op.name == "set" {
        let kind = op.kind()?;
        let one = match kind {
            Type::F32 => 1f32.to_bits() as u64,
            Type::F16 => 0x3c00,
            Type::Bf16 => 0x3f80,
            _ => u32::MAX as u64,
        };
        let one = decoder.layout.constant(one, kind.bytes());
        let zero = decoder.layout.constant(0, kind.bytes());
        let d = decoder.target(&operands[0], kind)?;
        decoder.step(select([d, one, zero, first], kind.bytes()));
        return Ok(());
    }
    let (p, q) = match &operands[0] {
        Operand::Pair(p, q) => (*p, *q),
        other => (other.name().ok_or("a predicate is missing")?, "_"),
    };
    for (name, from) in [(p, first), (q, second)] {
        let d = decoder.target_name(name, Type::Pred)?;
        decoder.step(masks([d, from, from], |a, _| a));
    }
    Ok(())
}

fn comparison_step(
    slots: [Slot; 3],
    comparison: &str,
    kind: Type,
    flush: bool,
) -> Result<Step, String> {
    if kind.float() {
        return by_float!(kind, T => match flush {
            true => compare::<T>(slots, comparison, T::flushed),
            false => compare::<T>(slots, comparison, |a| a),
        });
    }
    by_integer!(kind, T => compare::<T>(slots, comparison, |a| a))
}

/// The predicate of a comparison by its suffix. Those that end in `u` are also true when an operand is NaN.
#[expect(
    clippy::neg_cmp_op_on_partial_ord,
    reason = "that is how NaN makes an unordered comparison true"
)]
fn compare<T: Word + PartialOrd>(
    slots: [Slot; 3],
    comparison: &str,
    p: impl Fn(T) -> T + Send + Sync + 'static,
) -> Result<Step, String> {
    let ordered = |a: T, b: T| a.partial_cmp(&b).is_some();
    Ok(match comparison {
        "eq" => test(slots, move |a: T, b: T| p(a) == p(b)),
        "ne" => test(slots, move |a: T, b: T| p(a) < p(b) || p(a) > p(b)),
        "lt" | "lo" => test(slots, move |a: T, b: T| p(a) < p(b)),
        "le" | "ls" => test(slots, move |a: T, b: T| p(a) <= p(b)),
        "gt" | "hi" => test(slots, move |a: T, b: T| p(a) > p(b)),
        "ge" | "hs" => test(slots, move |a: T, b: T| p(a) >= p(b)),
        "equ" => test(slots, move |a: T, b: T| !(p(a) < p(b) || p(a) > p(b))),
        "neu" => test(slots, move |a: T, b: T| p(a) != p(b)),
        "ltu" => test(slots, move |a: T, b: T| !(p(a) >= p(b))),
        "leu" => test(slots, move |a: T, b: T| !(p(a) > p(b))),
        "gtu" => test(slots, move |a: T, b: T| !(p(a) <= p(b))),
        "geu" => test(slots, move |a: T, b: T| !(p(a) < p(b))),
        "num" => test(slots, ordered),
        "nan" => test(slots, move |a: T, b: T| !ordered(a, b)),
        other => return Err(format!("unknown comparison {other}")),
    })
}
