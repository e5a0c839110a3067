//! Turns the text of a kernel into instructions.

use super::branches::Fixup;
use super::calls::Callee;
use super::kernel::Kernel;
use super::layout::Layout;
use super::module::Module;
use super::opcode::Opcode;
use super::operand::{Operand, operands};
use super::registers::Slot;
use super::scopes::{Scopes, Symbol};
use super::steps::Step;
use super::token::tokens;
use super::types::Type;
use super::warp::{Action, Instruction};
use super::{
    accesses, arithmetic, atomics, branches, calls, compare, convert, integer as integers, logic,
    moves, warp_ops,
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
        // It gets its offset at the end, when the size of all other shared arrays is known.
        decoder.dynamic_align = decoder.dynamic_align.max(*align);
        decoder.dynamic.push(name);
    }
    for (number, (name, param)) in signature.params.iter().enumerate() {
        decoder
            .scopes
            .declare(name, Symbol::Argument(number, *param))?;
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

/// The state of decoding a kernel.
pub struct Decoder<'m> {
    pub module: &'m Module,
    pub layout: Layout,
    pub scopes: Scopes<'m>,
    pub code: Vec<Instruction>,
    /// The guard of the current instruction.
    guard: Option<(Slot, bool)>,
    /// Steps that widen the current instruction's results.
    pub pending: Vec<Step>,
    pub fixups: Vec<Fixup<'m>>,
    /// Labels of `.branchtargets`, by the name before them.
    pub tables: HashMap<&'m str, Vec<&'m str>>,
    pub shared: usize,
    pub local: usize,
    pub barriers: bool,
    /// Offsets of the module's shared arrays that the kernel names.
    pub arrays: HashMap<&'m str, u64>,
    /// Names of the dynamic shared memory, and the registers that hold its offset.
    pub dynamic: Vec<&'m str>,
    dynamic_align: usize,
    pub dynamic_slots: Vec<(Slot, usize)>,
    /// The carry flag.
    pub carry: Option<Slot>,
    /// Numbers the instructions that access memory.
    pub sites: usize,
    /// The functions decoded so far; `None` while one is being decoded.
    pub functions: HashMap<String, Option<Callee>>,
    /// The register with the current function's return address.
    pub back: Option<Slot>,
    /// Number of parameter variables.
    pub params: usize,
    /// The places of values stored in parameter variables, by variable and offset.
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
            arrays: HashMap::new(),
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
        let end = |from: usize| {
            tokens[from..]
                .iter()
                .position(|text| *text == ";")
                .map_or(tokens.len(), |n| from + n)
        };
        let mut at = 0;
        while let Some(first) = tokens.get(at) {
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
                        let end = end(at);
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
                    let end = end(at);
                    self.directive(&tokens[at..end])?;
                    at = end + 1;
                }
                _ => {
                    let end = end(at);
                    let statement = &tokens[at..end];
                    self.statement(statement)
                        .map_err(|error| format!("`{}`: {error}", statement.join(" ")))?;
                    at = end + 1;
                }
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
            "bra" | "brx" => branches::decode(self, op, operands),
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
            // One warp runs at a time, and its accesses are made in order, so there is nothing to wait for.
            "membar" | "fence" | "nanosleep" | "prefetch" | "prefetchu" | "brkpt" | "pmevent"
            | "discard" => Ok(()),
            _ if op.types.iter().any(|kind| kind.float() || kind.packed()) => {
                arithmetic::decode(self, op, operands)
            }
            _ => integers::decode(self, op, operands),
        }
    }

    /// Reserves declared bytes of a block's shared memory, and returns their offset.
    pub fn reserve_shared(&mut self, align: usize, bytes: usize) -> u64 {
        let offset = self.shared.next_multiple_of(align);
        self.shared = offset + bytes;
        offset as u64
    }

    /// Assigns the dynamic shared memory's offset, and returns the number of bytes before it.
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

    /// Adds a step before the current instruction; the steps that widen its results stay after it.
    pub fn step_before(&mut self, step: Step) {
        self.code.push(Instruction {
            guard: self.guard,
            action: Action::Step(step),
        });
    }
}
