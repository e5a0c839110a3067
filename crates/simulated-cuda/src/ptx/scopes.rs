//! The names that a function's text declares.

use super::kernel::Param;
use super::registers::Slot;
use super::types::Type;
use std::collections::HashMap;

/// The meaning of a name.
#[derive(Clone, Copy, Debug)]
pub enum Symbol {
    Register(Slot, Type),
    /// An offset into shared memory.
    Shared(u64),
    /// An offset into local memory.
    Local(u64),
    /// A function's parameter or result, or a caller's copy of it, by its number.
    Param(usize),
    /// A parameter of the kernel: its number and place.
    Argument(usize, Param),
}

/// The names between one pair of braces.
#[derive(Debug)]
struct Scope<'a> {
    parent: Option<usize>,
    names: HashMap<String, Symbol>,
    /// Register families, as `%r<44>`: name, count, type. Their registers get places when they are first used.
    families: Vec<(&'a str, u64, Type)>,
    labels: HashMap<&'a str, usize>,
}

/// All scopes of a kernel and of the functions that it calls.
#[derive(Debug, Default)]
pub struct Scopes<'a> {
    all: Vec<Scope<'a>>,
    current: Option<usize>,
}

impl<'a> Scopes<'a> {
    /// Opens a scope inside the current one.
    pub fn open(&mut self) {
        self.all.push(Scope {
            parent: self.current,
            names: HashMap::new(),
            families: Vec::new(),
            labels: HashMap::new(),
        });
        self.current = Some(self.all.len() - 1);
    }

    /// Closes the current scope.
    pub fn close(&mut self) {
        self.current = self.current.and_then(|id| self.all[id].parent);
    }

    /// Makes another scope the current one; `None` starts a function. Returns the former one.
    pub fn switch(&mut self, to: Option<usize>) -> Option<usize> {
        std::mem::replace(&mut self.current, to)
    }

    /// The current scope's number.
    pub fn current(&self) -> Option<usize> {
        self.current
    }

    fn top(&mut self) -> Result<&mut Scope<'a>, String> {
        let id = self.current.ok_or("a statement outside braces")?;
        Ok(&mut self.all[id])
    }

    /// Declares a name in the current scope.
    pub fn declare(&mut self, name: &str, symbol: Symbol) -> Result<(), String> {
        self.top()?.names.insert(name.to_owned(), symbol);
        Ok(())
    }

    /// Declares a register family.
    pub fn declare_family(
        &mut self,
        prefix: &'a str,
        count: u64,
        kind: Type,
    ) -> Result<(), String> {
        self.top()?.families.push((prefix, count, kind));
        Ok(())
    }

    /// Puts a label at an instruction.
    pub fn declare_label(&mut self, name: &'a str, index: usize) -> Result<(), String> {
        match self.top()?.labels.insert(name, index) {
            None => Ok(()),
            Some(_) => Err(format!("label {name} is there twice")),
        }
    }

    /// The meaning of a name; `place` assigns a place to a register of a family.
    pub fn find(&mut self, name: &str, mut place: impl FnMut(Type) -> Slot) -> Option<Symbol> {
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (prefix, number) = name.split_at(name.len() - digits);
        let number: Option<u64> = number.parse().ok();
        let mut next = self.current;
        while let Some(id) = next {
            let scope = &mut self.all[id];
            if let Some(symbol) = scope.names.get(name) {
                return Some(*symbol);
            }
            let family = scope.families.iter().find(|(known, count, _)| {
                *known == prefix && number.is_some_and(|number| number < *count)
            });
            if let Some((_, _, kind)) = family {
                let symbol = Symbol::Register(place(*kind), *kind);
                scope.names.insert(name.to_owned(), symbol);
                return Some(symbol);
            }
            next = scope.parent;
        }
        None
    }

    /// The instruction that a label seen from a scope marks.
    pub fn label(&self, mut scope: Option<usize>, name: &str) -> Option<usize> {
        while let Some(id) = scope {
            if let Some(index) = self.all[id].labels.get(name) {
                return Some(*index);
            }
            scope = self.all[id].parent;
        }
        None
    }
}
