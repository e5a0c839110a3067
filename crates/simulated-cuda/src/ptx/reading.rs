//! Finds the registers of an instruction's operands.

use super::convert;
use super::decode::Decoder;
use super::layout::Special;
use super::operand::Operand;
use super::registers::Slot;
use super::scopes::Symbol;
use super::space::argument_address;
use super::steps;
use super::token::integer;
use super::types::Type;

impl<'m> Decoder<'m> {
    /// A register without a name in the text.
    pub fn scratch(&mut self, kind: Type) -> Slot {
        self.layout.register(kind)
    }

    /// The carry flag.
    pub fn carry(&mut self) -> Slot {
        let layout = &mut self.layout;
        *self
            .carry
            .get_or_insert_with(|| layout.register(Type::Pred))
    }

    /// The meaning of a name.
    pub fn symbol(&mut self, name: &str) -> Option<Symbol> {
        let layout = &mut self.layout;
        self.scopes.find(name, |kind| layout.register(kind))
    }

    /// A register of this type that holds an operand's value.
    pub fn read(&mut self, operand: &Operand<'m>, kind: Type) -> Result<Slot, String> {
        if kind == Type::Pred {
            return self.read_predicate(operand);
        }
        if let Some(bits) = operand.immediate(kind) {
            return Ok(self.layout.constant(bits, kind.bytes()));
        }
        let Operand::Word {
            text,
            negative: false,
            inverted: false,
        } = operand
        else {
            return Err("an operand of an unknown form".to_owned());
        };
        let (slot, found) = match self.symbol(text) {
            Some(Symbol::Register(slot, found)) => (slot, found),
            Some(Symbol::Shared(offset) | Symbol::Local(offset)) => {
                return Ok(self.layout.constant(offset, kind.bytes()));
            }
            Some(Symbol::Argument(number, param)) => {
                let address = argument_address(number, param);
                return Ok(self.layout.constant(address, kind.bytes()));
            }
            Some(Symbol::Param(_)) => return Err(format!("the address of parameter {text}")),
            None => match Special::parse(text) {
                Some(special) => (self.layout.special(special), special.kind()),
                None => return self.read_global(text, kind),
            },
        };
        if found == Type::Pred || found.bytes() < kind.bytes() {
            return Err(format!("{text} is too narrow"));
        }
        if found.bytes() == kind.bytes() {
            return Ok(slot);
        }
        let narrow = self.scratch(kind);
        let step = convert::resize([narrow, slot], found, kind)?;
        self.step_before(step);
        Ok(narrow)
    }

    /// The address of a module's variable.
    fn read_global(&mut self, name: &'m str, kind: Type) -> Result<Slot, String> {
        if self.dynamic.contains(&name) {
            let slot = self.layout.register(kind);
            self.dynamic_slots.push((slot, kind.bytes()));
            return Ok(slot);
        }
        if let Some((align, bytes)) = self.module.array(name) {
            let offset = match self.arrays.get(name) {
                Some(offset) => *offset,
                None => self.reserve_shared(align, bytes),
            };
            self.arrays.insert(name, offset);
            return Ok(self.layout.constant(offset, kind.bytes()));
        }
        match self.module.global(name) {
            Some((address, _)) => Ok(self.layout.constant(address, kind.bytes())),
            None => Err(format!("unknown name {name}")),
        }
    }

    fn read_predicate(&mut self, operand: &Operand<'m>) -> Result<Slot, String> {
        let Operand::Word { text, inverted, .. } = operand else {
            return Err("a predicate is missing".to_owned());
        };
        if let Some(value) = integer(text) {
            return Ok(self.layout.predicate((value != 0) ^ inverted));
        }
        let Some(Symbol::Register(slot, Type::Pred)) = self.symbol(text) else {
            return Err(format!("{text} is no predicate"));
        };
        if !inverted {
            return Ok(slot);
        }
        let opposite = self.scratch(Type::Pred);
        let step = steps::masks([opposite, slot, slot], |a, _| !a);
        self.step_before(step);
        Ok(opposite)
    }

    /// The register for a result of this type. If the named one is wider, a step that widens the result follows the instruction.
    pub fn target(&mut self, operand: &Operand<'m>, kind: Type) -> Result<Slot, String> {
        let name = operand.name().ok_or("a register is missing")?;
        self.target_name(name, kind)
    }

    /// As [`Decoder::target`], by name.
    pub fn target_name(&mut self, name: &str, kind: Type) -> Result<Slot, String> {
        if name == "_" {
            return Ok(self.scratch(kind));
        }
        let Some(Symbol::Register(slot, found)) = self.symbol(name) else {
            return Err(format!("{name} is no register"));
        };
        if (found == Type::Pred) != (kind == Type::Pred) || found.bytes() < kind.bytes() {
            return Err(format!("{name} does not hold a result of this type"));
        }
        if found.bytes() == kind.bytes() {
            return Ok(slot);
        }
        let narrow = self.scratch(kind);
        self.pending
            .push(convert::resize([slot, narrow], kind, found)?);
        Ok(narrow)
    }

    /// The registers of the operands after the first, of these types.
    pub fn sources<const N: usize>(
        &mut self,
        operands: &[Operand<'m>],
        kinds: [Type; N],
    ) -> Result<[Slot; N], String> {
        if operands.len() != N + 1 {
            return Err(format!("{} operands and not {}", operands.len(), N + 1));
        }
        let mut slots = [Slot(0); N];
        for (index, kind) in kinds.into_iter().enumerate() {
            slots[index] = self.read(&operands[index + 1], kind)?;
        }
        Ok(slots)
    }
}
