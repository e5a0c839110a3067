//! The parts of an instruction's name.

use super::types::Type;

/// An instruction's name with its suffixes.
#[derive(Debug)]
pub struct Opcode<'a> {
    /// The part before the first dot.
    pub name: &'a str,
    /// The suffixes that are not types, in order.
    pub modifiers: Vec<&'a str>,
    /// The suffixes that are types, in order; the result's comes first.
    pub types: Vec<Type>,
}

impl<'a> Opcode<'a> {
    /// Splits `text` at its dots.
    pub fn parse(text: &'a str) -> Opcode<'a> {
        let mut parts = text.split('.');
        let name = parts.next().unwrap_or_default();
        let (mut modifiers, mut types) = (Vec::new(), Vec::new());
        for part in parts {
            match Type::parse(part) {
                Some(kind) => types.push(kind),
                None => modifiers.push(part),
            }
        }
        Opcode {
            name,
            modifiers,
            types,
        }
    }

    /// Whether this suffix is present.
    pub fn has(&self, modifier: &str) -> bool {
        self.modifiers.contains(&modifier)
    }

    /// The first type; most instructions have only one.
    pub fn kind(&self) -> Result<Type, String> {
        self.types
            .first()
            .copied()
            .ok_or_else(|| "a type suffix is missing".to_owned())
    }

    /// Fails if there is a suffix other than these, because an unknown one may change the instruction's meaning.
    pub fn allow(&self, known: &[&str]) -> Result<(), String> {
        match self
            .modifiers
            .iter()
            .find(|modifier| !known.contains(modifier))
        {
            Some(unknown) => Err(format!("unknown suffix .{unknown}")),
            None => Ok(()),
        }
    }
}
