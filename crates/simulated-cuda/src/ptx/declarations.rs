//! The declarations within a function: registers, shared and local memory, and the variables of calls.

use super::decode::Decoder;
use super::globals::variable;
use super::scopes::Symbol;
use super::token::integer;
use super::types::Type;

impl<'m> Decoder<'m> {
    /// Decodes a directive: its tokens up to the semicolon.
    pub fn directive(&mut self, tokens: &[&'m str]) -> Result<(), String> {
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
            ".shared" => Symbol::Shared(self.reserve_shared(found.align, size)),
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
}
