//! Decodes loads and stores.

use super::decode::Decoder;
use super::memory::{Address, by_width};
use super::opcode::Opcode;
use super::operand::Operand;
use super::registers::Slot;
use super::scopes::Symbol;
use super::space::Region;
use super::steps::copy;
use super::token::integer;
use super::types::Type;
use super::warp::Action;

/// Suffixes for caching and for the order of several threads' accesses, which have no effect: all accesses are made in order.
const HINTS: [&str; 24] = [
    "nc",
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "volatile",
    "weak",
    "relaxed",
    "acquire",
    "release",
    "cta",
    "gpu",
    "sys",
    "cluster",
    "L1::evict_last",
    "L1::evict_first",
    "L1::no_allocate",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "acq_rel",
];

/// Whether a suffix has no effect on an access.
pub fn is_hint(modifier: &str) -> bool {
    HINTS.contains(&modifier)
}

/// Decodes `ld` and `st`.
pub fn decode<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
) -> Result<(), String> {
    let kind = op.kind()?;
    if kind == Type::Pred {
        return Err("a predicate in memory".to_owned());
    }
    let (mut space, mut count) = ("", 1);
    for modifier in &op.modifiers {
        match *modifier {
            "global" | "shared" | "local" | "param" | "const" => space = modifier,
            "shared::cta" => space = "shared",
            "v2" => count = 2,
            "v4" => count = 4,
            "v8" => count = 8,
            hint if is_hint(hint) => {}
            other => return Err(format!("unknown suffix .{other}")),
        }
    }
    let loads = op.name != "st";
    let [first, second] = operands else {
        return Err("two operands are needed".to_owned());
    };
    let (place, values) = if loads {
        (second, first)
    } else {
        (first, second)
    };
    let values = match values {
        Operand::Vector(parts) => parts.as_slice(),
        one => std::slice::from_ref(one),
    };
    if values.len() != count {
        return Err("a wrong number of values".to_owned());
    }
    let mut slots = Vec::new();
    for value in values {
        slots.push(if loads {
            decoder.target(value, kind)?
        } else {
            decoder.read(value, kind)?
        });
    }
    if space == "param" && !(loads && computed(decoder, place)) {
        return param(decoder, place, kind, &slots, loads);
    }
    let address = address(decoder, place, region(space))?;
    decoder.emit(Action::Access(by_width(
        kind.bytes(),
        address,
        slots,
        loads,
    )));
    Ok(())
}

/// The region of a state space's name.
pub fn region(space: &str) -> Region {
    match space {
        "shared" => Region::Shared,
        "local" => Region::Local,
        "param" => Region::Argument,
        _ => Region::Generic,
    }
}

/// The address of an operand `[base + offset]`.
pub fn address<'m>(
    decoder: &mut Decoder<'m>,
    operand: &Operand<'m>,
    region: Region,
) -> Result<Address, String> {
    let Operand::Address { base, offset } = operand else {
        return Err("an address is missing".to_owned());
    };
    decoder.sites += 1;
    let site = decoder.sites;
    if let Some(number) = integer(base) {
        let base = decoder.layout.constant(number, 8);
        return Ok(Address {
            region,
            base,
            wide: true,
            offset: *offset,
            site,
        });
    }
    let wide =
        !matches!(decoder.symbol(base), Some(Symbol::Register(_, kind)) if kind.bytes() == 4);
    let base = decoder.read(
        &Operand::word(base),
        if wide { Type::U64 } else { Type::U32 },
    )?;
    Ok(Address {
        region,
        base,
        wide,
        offset: *offset,
        site,
    })
}

/// Whether the address is in a register, as for an element whose index is known only at run time.
fn computed(decoder: &mut Decoder, place: &Operand) -> bool {
    match place {
        Operand::Address { base, .. } => {
            matches!(decoder.symbol(base), Some(Symbol::Register(..)))
        }
        _ => false,
    }
}

/// Accesses by a parameter's name. Parameters are in registers: a kernel's are filled before the launch, a function's are copied by
/// the call.
fn param<'m>(
    decoder: &mut Decoder<'m>,
    place: &Operand<'m>,
    kind: Type,
    slots: &[Slot],
    loads: bool,
) -> Result<(), String> {
    let Operand::Address { base, offset } = place else {
        return Err("an address is missing".to_owned());
    };
    let bytes = kind.bytes();
    for (index, slot) in slots.iter().enumerate() {
        let offset = offset + (index * bytes) as i64;
        let held = match decoder.symbol(base) {
            Some(Symbol::Argument(_, param)) if loads => {
                if offset < 0 || offset as usize + bytes > param.size {
                    return Err(format!("beyond parameter {base}"));
                }
                decoder
                    .layout
                    .argument(param.offset + offset as usize, bytes)
            }
            Some(Symbol::Param(id)) => decoder.place(id, offset, bytes)?,
            _ => return Err(format!("{base} is no parameter that can be accessed so")),
        };
        // The steps that widen loaded values come after each copy; they are independent of each other.
        decoder.step(copy(
            if loads { [*slot, held] } else { [held, *slot] },
            bytes,
        ));
    }
    Ok(())
}
