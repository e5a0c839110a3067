//! An instruction's name, taken apart.

use super::types::Type;

/// An instruction's name with its suffixes.
#[derive(Debug)]
pub struct Opcode<'a> {
    /// What stands before the first dot.
    pub name: &'a str,
    /// The suffixes that are not types, in order.
    pub modifiers: Vec<&'a str>,
    /// The suffixes that are types, in order: the result's first.
    pub types: Vec<Type>,
}

impl<'a> Opcode<'a> {
    /// Takes `text` apart at its dots.
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

    /// The first type, which most instructions have alone.
    pub fn kind(&self) -> Result<Type, String> {
        self.types
            .first()
            .copied()
            .ok_or_else(|| "a type suffix is missing".to_owned())
    }

    /// Fails when there is a suffix other than these: an unknown one may change what the instruction means.
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
