//! The places of a kernel's registers, constants and parameters in a warp's register file.

use super::registers::{LANES, Slot};
use super::types::Type;
use std::collections::HashMap;

/// The initial value of a register, the same in all lanes of a launch.
#[derive(Clone, Copy, Debug)]
pub enum Uniform {
    /// These bits.
    Constant(u64),
    /// The argument's bytes at this offset.
    Argument(usize),
}

/// A read-only register that the device fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    /// `%tid` in x, y or z.
    Thread(usize),
    /// `%ntid`.
    Threads(usize),
    /// `%ctaid`.
    Block(usize),
    /// `%nctaid`.
    Blocks(usize),
    Lane,
    Warp,
    Warps,
    /// `%lanemask_eq`, `_lt`, `_le`, `_gt`, `_ge`, in this order.
    LaneMask(usize),
    DynamicShared,
    /// Clocks and the numbers of processors, which are always zero here.
    Zero32,
    /// As [`Special::Zero32`], 64 bits wide.
    Zero64,
}

impl Special {
    /// The register of this name.
    pub fn parse(name: &str) -> Option<Special> {
        let name = name.strip_prefix('%')?;
        let (base, axis) = match name.split_once('.') {
            Some((base, axis)) => (
                base,
                ["x", "y", "z"].iter().position(|known| *known == axis),
            ),
            None => (name, None),
        };
        Some(match (base, axis) {
            ("tid", Some(axis)) => Special::Thread(axis),
            ("ntid", Some(axis)) => Special::Threads(axis),
            ("ctaid", Some(axis)) => Special::Block(axis),
            ("nctaid", Some(axis)) => Special::Blocks(axis),
            ("laneid", None) => Special::Lane,
            ("warpid", None) => Special::Warp,
            ("nwarpid", None) => Special::Warps,
            ("lanemask_eq", None) => Special::LaneMask(0),
            ("lanemask_lt", None) => Special::LaneMask(1),
            ("lanemask_le", None) => Special::LaneMask(2),
            ("lanemask_gt", None) => Special::LaneMask(3),
            ("lanemask_ge", None) => Special::LaneMask(4),
            ("dynamic_smem_size", None) => Special::DynamicShared,
            ("clock" | "clock_hi" | "smid" | "nsmid", None) => Special::Zero32,
            ("clock64" | "globaltimer", None) => Special::Zero64,
            _ => return None,
        })
    }

    /// Its type.
    pub fn kind(self) -> Type {
        if self == Special::Zero64 {
            Type::U64
        } else {
            Type::U32
        }
    }
}

/// The places assigned so far.
#[derive(Debug, Default)]
pub struct Layout {
    /// Bytes of one warp's file.
    pub bytes: usize,
    /// Registers filled once per launch: the place, the bytes of a lane, the value.
    pub uniforms: Vec<(Slot, usize, Uniform)>,
    /// The special registers in use.
    pub specials: Vec<(Slot, Special)>,
    constants: HashMap<(u64, usize), Slot>,
    arguments: HashMap<(usize, usize), Slot>,
    predicates: HashMap<bool, Slot>,
}

impl Layout {
    fn take(&mut self, bytes: usize) -> Slot {
        let slot = Slot(self.bytes as u32);
        self.bytes += bytes.next_multiple_of(Slot::ALIGN);
        slot
    }

    /// A new register of this type.
    pub fn register(&mut self, kind: Type) -> Slot {
        self.take(if kind == Type::Pred {
            4
        } else {
            kind.bytes() * LANES
        })
    }

    /// A register that holds these bits in all lanes.
    pub fn constant(&mut self, bits: u64, bytes: usize) -> Slot {
        if let Some(slot) = self.constants.get(&(bits, bytes)) {
            return *slot;
        }
        let slot = self.take(bytes * LANES);
        self.constants.insert((bits, bytes), slot);
        self.uniforms.push((slot, bytes, Uniform::Constant(bits)));
        slot
    }

    /// A predicate with a constant value.
    pub fn predicate(&mut self, value: bool) -> Slot {
        if let Some(slot) = self.predicates.get(&value) {
            return *slot;
        }
        // Filled as 32 lanes of one byte each: the mask reads the first four of them.
        let slot = self.take(LANES);
        self.predicates.insert(value, slot);
        let bits = if value { u8::MAX as u64 } else { 0 };
        self.uniforms.push((slot, 1, Uniform::Constant(bits)));
        slot
    }

    /// A register that holds `bytes` bytes of the kernel's arguments in all lanes.
    pub fn argument(&mut self, offset: usize, bytes: usize) -> Slot {
        if let Some(slot) = self.arguments.get(&(offset, bytes)) {
            return *slot;
        }
        let slot = self.take(bytes * LANES);
        self.arguments.insert((offset, bytes), slot);
        self.uniforms.push((slot, bytes, Uniform::Argument(offset)));
        slot
    }

    /// A special register.
    pub fn special(&mut self, special: Special) -> Slot {
        if let Some((slot, _)) = self.specials.iter().find(|(_, known)| *known == special) {
            return *slot;
        }
        let slot = self.take(special.kind().bytes() * LANES);
        self.specials.push((slot, special));
        slot
    }
}
