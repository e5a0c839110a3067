//! Turns the text of a kernel into instructions.

use super::calls::Callee;
use super::convert;
use super::globals::variable;
use super::kernel::Kernel;
use super::layout::{Layout, Special};
use super::module::Module;
use super::opcode::Opcode;
use super::operand::{Operand, operands};
use super::registers::Slot;
use super::scopes::{Scopes, Symbol};
use super::space::{LOCAL_TAG, SHARED_TAG};
use super::steps::{self, Step};
use super::token::{integer, tokens};
use super::types::Type;
use super::warp::{Action, Instruction};
use super::{
    accesses, arithmetic, atomics, calls, compare, integer as integers, logic, moves, warp_ops,
};
use std::collections::HashMap;

/// Decodes the entry of this name.
pub fn kernel(module: &Module, name: &str) -> Result<Kernel, String> {
    let signature = module.function(name)?;
    let mut decoder = Decoder::new(module);
    decoder.callees(signature.body)?;
    let start = decoder.code.len();
    decoder.scopes.switch(None);
    decoder.scopes.open();
    for (name, align) in module.dynamic() {
        // Given its offset at the end, when the size of all other shared arrays is known.
        decoder.dynamic_align = decoder.dynamic_align.max(*align);
        decoder.dynamic.push(name);
    }
    for (name, param) in &signature.params {
        decoder
            .scopes
            .declare(name, Symbol::Argument(param.offset, param.size))?;
    }
    decoder.body(signature.body)?;
    decoder.emit(Action::Exit);
    decoder.finish_branches()?;
    let shared = decoder.finish_dynamic();
    Ok(Kernel {
        name: name.to_owned(),
        params: signature.params.iter().map(|(_, param)| *param).collect(),
        code: decoder.code,
        start,
        layout: decoder.layout,
        shared,
        local: decoder.local,
        barriers: decoder.barriers,
        globals: module.globals().clone(),
    })
}

/// A branch whose label may come later.
struct Fixup<'m> {
    instruction: usize,
    scope: Option<usize>,
    labels: Vec<&'m str>,
}

/// What is known while a kernel is decoded.
pub struct Decoder<'m> {
    pub module: &'m Module,
    pub layout: Layout,
    pub scopes: Scopes<'m>,
    pub code: Vec<Instruction>,
    /// The guard of the current instruction.
    guard: Option<(Slot, bool)>,
    /// Steps that widen the current instruction's results.
    pending: Vec<Step>,
    fixups: Vec<Fixup<'m>>,
    /// Labels of `.branchtargets`, by the name before them.
    tables: HashMap<&'m str, Vec<&'m str>>,
    pub shared: usize,
    pub local: usize,
    pub barriers: bool,
    /// Names of the dynamic shared memory, and the registers that hold its offset.
    dynamic: Vec<&'m str>,
    dynamic_align: usize,
    dynamic_slots: Vec<(Slot, usize)>,
    /// The carry flag.
    carry: Option<Slot>,
    /// Numbers the instructions that access memory.
    pub sites: usize,
    /// The functions decoded so far; `None` while one is being decoded.
    pub functions: HashMap<String, Option<Callee>>,
    /// Where the current function keeps its return address.
    pub back: Option<Slot>,
    /// How many parameter variables there are.
    pub params: usize,
    /// The places of what is stored in parameter variables, by variable and offset.
    pub places: HashMap<(usize, i64), (Slot, usize)>,
}

impl<'m> Decoder<'m> {
    fn new(module: &'m Module) -> Decoder<'m> {
        Decoder {
            module,
            layout: Layout::default(),
            scopes: Scopes::default(),
            code: Vec::new(),
            guard: None,
            pending: Vec::new(),
            fixups: Vec::new(),
            tables: HashMap::new(),
            shared: 0,
            local: 0,
            barriers: false,
            dynamic: Vec::new(),
            dynamic_align: 1,
            dynamic_slots: Vec::new(),
            carry: None,
            sites: 0,
            functions: HashMap::new(),
            back: None,
            params: 0,
            places: HashMap::new(),
        }
    }

    /// Decodes the statements between a function's braces.
    pub fn body(&mut self, text: &'m str) -> Result<(), String> {
        let tokens = tokens(text);
        let mut at = 0;
        while let Some(first) = tokens.get(at) {
            let end = || {
                tokens[at..]
                    .iter()
                    .position(|text| *text == ";")
                    .map_or(tokens.len(), |n| at + n)
            };
            match *first {
                ";" => at += 1,
                "{" => {
                    self.scopes.open();
                    at += 1;
                }
                "}" => {
                    self.scopes.close();
                    at += 1;
                }
                name if tokens.get(at + 1) == Some(&":") => {
                    at += 2;
                    if let Some(&".branchtargets") = tokens.get(at) {
                        let end = tokens[at..]
                            .iter()
                            .position(|text| *text == ";")
                            .map_or(tokens.len(), |n| at + n);
                        let labels = tokens[at + 1..end]
                            .iter()
                            .copied()
                            .filter(|text| *text != ",")
                            .collect();
                        self.tables.insert(name, labels);
                        at = end;
                    } else {
                        self.scopes.declare_label(name, self.code.len())?;
                    }
                }
                word if word.starts_with('.') => {
                    let end = end();
                    self.directive(&tokens[at..end])?;
                    at = end + 1;
                }
                _ => {
                    let end = end();
                    let statement = &tokens[at..end];
                    self.statement(statement)
                        .map_err(|error| format!("`{}`: {error}", statement.join(" ")))?;
                    at = end + 1;
                }
            }
        }
        Ok(())
    }

    fn directive(&mut self, tokens: &[&'m str]) -> Result<(), String> {
        let space = tokens[0];
        match space {
            ".reg" => return self.registers(&tokens[1..]),
            ".shared" | ".local" | ".param" => {}
            ".pragma" => return Ok(()),
            other => return Err(format!("unknown directive {other}")),
        }
        let (found, _) = variable(&tokens[1..])?;
        let size = found.kind.bytes() * found.count.unwrap_or(0);
        let symbol = match space {
            ".param" => {
                self.params += 1;
                Symbol::Param(self.params)
            }
            ".shared" => {
                let offset = self.shared.next_multiple_of(found.align);
                self.shared = offset + size;
                Symbol::Shared(offset as u64)
            }
            _ => {
                let offset = self.local.next_multiple_of(found.align);
                self.local = offset + size;
                Symbol::Local(offset as u64)
            }
        };
        self.scopes.declare(found.name, symbol)
    }

    fn registers(&mut self, tokens: &[&'m str]) -> Result<(), String> {
        let kind = tokens
            .first()
            .and_then(|text| text.strip_prefix('.'))
            .and_then(Type::parse);
        let kind = kind.ok_or_else(|| format!("unknown registers {}", tokens.join(" ")))?;
        for part in tokens[1..].split(|text| *text == ",") {
            match part {
                [name] => {
                    let slot = self.layout.register(kind);
                    self.scopes.declare(name, Symbol::Register(slot, kind))?;
                }
                [prefix, "<", count, ">"] => {
                    let count = integer(count).ok_or("a count of registers that is no number")?;
                    self.scopes.declare_family(prefix, count, kind)?;
                }
                _ => return Err(format!("unknown registers {}", part.join(" "))),
            }
        }
        Ok(())
    }

    fn statement(&mut self, tokens: &[&'m str]) -> Result<(), String> {
        let (guard, rest) = match tokens {
            ["@", "!", name, rest @ ..] => (Some((*name, true)), rest),
            ["@", name, rest @ ..] => (Some((*name, false)), rest),
            rest => (None, rest),
        };
        self.guard = None;
        if let Some((name, inverted)) = guard {
            self.guard = Some((self.read(&Operand::word(name), Type::Pred)?, inverted));
        }
        let [name, rest @ ..] = rest else {
            return Err("an instruction is missing".to_owned());
        };
        let opcode = Opcode::parse(name);
        let operands = operands(rest)?;
        self.instruction(&opcode, &operands)?;
        self.guard = None;
        Ok(())
    }

    fn instruction(&mut self, op: &Opcode, operands: &[Operand<'m>]) -> Result<(), String> {
        match op.name {
            "mov" | "cvta" | "selp" | "slct" => moves::decode(self, op, operands),
            "ld" | "ldu" | "st" => accesses::decode(self, op, operands),
            "atom" | "red" => atomics::decode(self, op, operands),
            "cvt" => convert::decode(self, op, operands),
            "setp" | "set" => compare::decode(self, op, operands),
            "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "shf" | "lop3" | "prmt"
            | "bfe" | "bfi" | "bfind" | "brev" | "clz" | "popc" => {
                logic::decode(self, op, operands)
            }
            "shfl" | "vote" | "activemask" | "match" | "redux" | "bar" | "barrier" => {
                warp_ops::decode(self, op, operands)
            }
            "call" => calls::decode(self, op, operands),
            "bra" => {
                let label = operands
                    .first()
                    .and_then(Operand::name)
                    .ok_or("a label is missing")?;
                self.branch(vec![label], Action::Branch(0));
                Ok(())
            }
            "brx" => {
                let [index, table] = operands else {
                    return Err("operands are missing".to_owned());
                };
                let slot = self.read(index, Type::U32)?;
                let labels = table
                    .name()
                    .and_then(|name| self.tables.get(name))
                    .ok_or("an unknown table")?
                    .clone();
                self.branch(labels, Action::Switch(slot, Vec::new()));
                Ok(())
            }
            "ret" => {
                self.emit(self.back.map_or(Action::Exit, Action::Return));
                Ok(())
            }
            "exit" => {
                self.emit(Action::Exit);
                Ok(())
            }
            "trap" => {
                self.emit(Action::Trap);
                Ok(())
            }
            // One warp runs at a time, and its accesses are made in order: there is nothing to wait for.
            "membar" | "fence" | "nanosleep" | "prefetch" | "prefetchu" | "brkpt" | "pmevent"
            | "discard" => Ok(()),
            _ if op.types.iter().any(|kind| kind.float() || kind.packed()) => {
                arithmetic::decode(self, op, operands)
            }
            _ => integers::decode(self, op, operands),
        }
    }

    fn branch(&mut self, labels: Vec<&'m str>, action: Action) {
        let scope = self.scopes.current();
        self.fixups.push(Fixup {
            instruction: self.code.len(),
            scope,
            labels,
        });
        self.emit(action);
    }

    fn finish_branches(&mut self) -> Result<(), String> {
        for Fixup {
            instruction,
            scope,
            labels,
        } in std::mem::take(&mut self.fixups)
        {
            let find = |name: &&str| {
                self.scopes
                    .label(scope, name)
                    .ok_or_else(|| format!("unknown label {name}"))
            };
            let targets = labels.iter().map(find).collect::<Result<Vec<_>, _>>()?;
            self.code[instruction].action = match &self.code[instruction].action {
                Action::Switch(slot, _) => Action::Switch(*slot, targets),
                _ => Action::Branch(targets[0]),
            };
        }
        Ok(())
    }

    /// Gives the dynamic shared memory its offset; returns the bytes before it.
    fn finish_dynamic(&mut self) -> usize {
        let start = self.shared.next_multiple_of(self.dynamic_align.max(16));
        for (slot, bytes) in std::mem::take(&mut self.dynamic_slots) {
            let value = super::layout::Uniform::Constant(start as u64);
            self.layout.uniforms.push((slot, bytes, value));
        }
        if self.dynamic.is_empty() {
            self.shared
        } else {
            start
        }
    }

    /// Adds an instruction under the current guard, and the steps that widen its results.
    pub fn emit(&mut self, action: Action) {
        let guard = self.guard;
        self.code.push(Instruction { guard, action });
        for step in std::mem::take(&mut self.pending) {
            self.code.push(Instruction {
                guard,
                action: Action::Step(step),
            });
        }
    }

    /// Adds a step under the current guard.
    pub fn step(&mut self, step: Step) {
        self.emit(Action::Step(step));
    }

    /// A register that the text does not name.
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

    /// What a name stands for.
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
            Some(Symbol::Argument(offset, _)) => {
                return Ok(self.layout.constant(offset as u64, kind.bytes()));
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
        let guard = self.guard;
        self.code.push(Instruction {
            guard,
            action: Action::Step(step),
        });
        Ok(narrow)
    }

    /// The address of a module's variable.
    fn read_global(&mut self, name: &str, kind: Type) -> Result<Slot, String> {
        if self.dynamic.contains(&name) {
            let slot = self.layout.register(kind);
            self.dynamic_slots.push((slot, kind.bytes()));
            return Ok(slot);
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
        let guard = self.guard;
        let step = steps::masks([opposite, slot, slot], |a, _| !a);
        self.code.push(Instruction {
            guard,
            action: Action::Step(step),
        });
        Ok(opposite)
    }

    /// The register that takes a result of this type. If the named one is wider, a step that widens the result follows the
    /// instruction.
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

    /// The generic address of shared or local memory in place of an offset.
    pub fn tag(space: &str) -> u64 {
        match space {
            "shared" => SHARED_TAG,
            "local" => LOCAL_TAG,
            _ => 0,
        }
    }
}
