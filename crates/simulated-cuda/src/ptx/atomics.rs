//! Atomic operations. Only one warp runs at a time, and its lanes run one after the other.

use super::accesses::{address, is_hint, region};
use super::decode::Decoder;
use super::float::{Float, by_float};
use super::integer_ops::by_integer;
use super::memory::{Access, Address, lanes_of};
use super::opcode::Opcode;
use super::operand::Operand;
use super::registers::{LANES, Slot, Word};
use super::types::Type;
use super::warp::Action;

/// Decodes `atom` and `red`.
pub fn decode<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
) -> Result<(), String> {
    let kind = op.kind()?;
    if kind == Type::Pred {
        return Err("a predicate in memory".to_owned());
    }
    let (mut space, mut operation) = ("", "");
    for modifier in &op.modifiers {
        match *modifier {
            "global" | "shared" => space = modifier,
            "shared::cta" => space = "shared",
            "add" | "min" | "max" | "and" | "or" | "xor" | "exch" | "cas" | "inc" | "dec" => {
                operation = modifier
            }
            "noftz" => {}
            hint if is_hint(hint) => {}
            other => return Err(format!("unknown suffix .{other}")),
        }
    }
    let (target, rest) = match (op.name, operands) {
        ("atom", [target, rest @ ..]) => (decoder.target(target, kind)?, rest),
        (_, rest) => (decoder.scratch(kind), rest),
    };
    let (place, values) = rest.split_first().ok_or("operands are missing")?;
    if values.len() != if operation == "cas" { 2 } else { 1 } {
        return Err("a wrong number of operands".to_owned());
    }
    let address = address(decoder, place, region(space))?;
    let b = decoder.read(&values[0], kind)?;
    let c = if operation == "cas" {
        decoder.read(&values[1], kind)?
    } else {
        b
    };
    let slots = [target, b, c];
    let access = if kind.float() {
        by_float!(kind, T => match operation {
            "add" => update(address, slots, |old: T, b: T, _| Float::add(old, b)),
            "min" => update(address, slots, |old: T, b: T, _| old.least(b)),
            "max" => update(address, slots, |old: T, b: T, _| old.greatest(b)),
            "exch" => update(address, slots, |_: T, b: T, _| b),
            other => return Err(format!("unknown operation {other}")),
        })
    } else if kind.packed() {
        return Err("atomic operations on pairs".to_owned());
    } else {
        by_integer!(kind, T => match operation {
            "add" => update(address, slots, |old: T, b: T, _| old.wrapping_add(b)),
            "min" => update(address, slots, |old: T, b: T, _| old.min(b)),
            "max" => update(address, slots, |old: T, b: T, _| old.max(b)),
            "and" => update(address, slots, |old: T, b: T, _| old & b),
            "or" => update(address, slots, |old: T, b: T, _| old | b),
            "xor" => update(address, slots, |old: T, b: T, _| old ^ b),
            "exch" => update(address, slots, |_: T, b: T, _| b),
            "cas" => update(address, slots, |old: T, b: T, c: T| if old == b { c } else { old }),
            "inc" => update(address, slots, |old: T, b: T, _| if old >= b { 0 } else { old + 1 }),
            "dec" => update(address, slots, |old: T, b: T, _| if old == 0 || old > b { b } else { old - 1 }),
            other => return Err(format!("unknown operation {other}")),
        })
    };
    decoder.emit(Action::Access(access));
    Ok(())
}

fn update<T: Word>(
    address: Address,
    [target, b, c]: [Slot; 3],
    f: impl Fn(T, T, T) -> T + Send + Sync + 'static,
) -> Access {
    Box::new(move |frame, space, mask| {
        let addresses = address.lanes(frame);
        let (b, c) = (frame.lanes::<T>(b), frame.lanes::<T>(c));
        let mut out = [T::default(); LANES];
        for lane in lanes_of(mask) {
            let place = space.resolve(
                address.region,
                addresses[lane],
                size_of::<T>(),
                lane,
                address.site,
            )?;
            let place = place.cast::<T>();
            // SAFETY: `resolve` checked that the value lies in live memory.
            unsafe {
                out[lane] = place.read_unaligned();
                place.write_unaligned(f(out[lane], b[lane], c[lane]));
            }
        }
        frame.write(target, &out, mask);
        Ok(())
    })
}
