//! A module's own variables, in memory that kernels can reach.

use super::token;
use super::types::Type;
use std::collections::HashMap;
use std::ops::Range;

/// 16 aligned bytes, the largest alignment of a kernel's accesses.
#[derive(Clone, Copy, Default)]
#[repr(align(16))]
struct Line([u8; 16]);

/// The `.global` and `.const` variables of a module.
#[derive(Default)]
pub struct Globals {
    // Only kernels read and write it, through addresses.
    memory: Vec<Line>,
    base: u64,
    bytes: usize,
    symbols: HashMap<String, (usize, usize)>,
}

/// The declaration of an array or a scalar.
#[derive(Debug)]
pub struct Variable<'a> {
    pub name: &'a str,
    pub kind: Type,
    pub align: usize,
    /// Number of elements; `None` for `name[]`.
    pub count: Option<usize>,
}

/// Reads `.align A .type name[N]…` from the front of the tokens, and leaves those after the name.
pub fn variable<'a, 't>(
    mut tokens: &'t [&'a str],
) -> Result<(Variable<'a>, &'t [&'a str]), String> {
    let (mut align, mut kind) = (None, None);
    // After `.ptr`, an alignment is that of the parameter's target.
    let mut pointee = false;
    while let [word, rest @ ..] = tokens {
        let Some(word) = word.strip_prefix('.') else {
            break;
        };
        tokens = rest;
        if let Some(parsed) = Type::parse(word) {
            kind = Some(parsed);
        } else if word == "ptr" {
            pointee = true;
        } else if word == "align" && pointee {
            tokens = rest.get(1..).unwrap_or_default();
        } else if word == "align" {
            align = rest
                .first()
                .and_then(|text| token::integer(text))
                .map(|value| value as usize);
            tokens = rest.get(1..).unwrap_or_default();
        }
    }
    let kind = kind.ok_or("a variable without a type")?;
    let [name, rest @ ..] = tokens else {
        return Err("a variable without a name".to_owned());
    };
    let (mut count, mut rest) = (Some(1usize), rest);
    while let ["[", inner @ ..] = rest {
        let end = inner
            .iter()
            .position(|text| *text == "]")
            .ok_or("[ without ]")?;
        let size = inner[..end].first().and_then(|text| token::integer(text));
        count = count.zip(size).and_then(|(a, b)| a.checked_mul(b as usize));
        rest = &inner[end + 1..];
    }
    let align = align.unwrap_or(kind.bytes()).max(1);
    if align > 4096 || count.is_some_and(|count| count > 1 << 30) {
        return Err(format!("{name} is too large"));
    }
    Ok((
        Variable {
            name,
            kind,
            align,
            count,
        },
        rest,
    ))
}

impl Globals {
    /// The variables of these declarations, each with its initialiser, if any.
    pub fn new(declarations: &[&str]) -> Result<Globals, String> {
        let mut bytes: Vec<u8> = Vec::new();
        let mut symbols = HashMap::new();
        let mut addresses = Vec::new();
        for declaration in declarations {
            let tokens = token::tokens(declaration);
            let (variable, rest) = variable(&tokens)?;
            let values: Vec<&str> = rest
                .iter()
                .copied()
                .filter(|t| !matches!(*t, "=" | "{" | "}" | ","))
                .collect();
            let element = variable.kind.bytes();
            let size = variable.count.unwrap_or(values.len()) * element;
            let start = bytes.len().next_multiple_of(variable.align.clamp(1, 4096));
            bytes.resize(start + size, 0);
            symbols.insert(variable.name.to_owned(), (start, size));
            let (mut at, mut negative) = (start, false);
            for value in values {
                if value == "-" {
                    negative = true;
                    continue;
                }
                let bits = match (token::integer(value), token::float(value)) {
                    (Some(number), _) if negative => number.wrapping_neg(),
                    (Some(number), _) => number,
                    (None, Some(number)) if variable.kind == Type::F32 => {
                        (number as f32).to_bits() as u64
                    }
                    (None, Some(number)) => number.to_bits(),
                    (None, None) => {
                        addresses.push((at, value.to_owned()));
                        0
                    }
                };
                negative = false;
                let Some(place) = bytes.get_mut(at..at + element) else {
                    return Err(format!("too many values for {}", variable.name));
                };
                place.copy_from_slice(&bits.to_le_bytes()[..element]);
                at += element;
            }
        }
        let mut memory: Vec<Line> = bytes
            .chunks(16)
            .map(|chunk| {
                let mut line = Line::default();
                line.0[..chunk.len()].copy_from_slice(chunk);
                line
            })
            .collect();
        let base = memory.as_mut_ptr() as u64;
        for (at, name) in addresses {
            let (offset, _) = symbols
                .get(&name)
                .ok_or_else(|| format!("unknown value {name} in an initialiser"))?;
            let line = &mut memory[at / 16].0;
            let place = line
                .get_mut(at % 16..at % 16 + 8)
                .ok_or("a misaligned address in an initialiser")?;
            place.copy_from_slice(&(base + *offset as u64).to_le_bytes());
        }
        Ok(Globals {
            base,
            bytes: bytes.len(),
            memory,
            symbols,
        })
    }

    /// A variable's address and its bytes.
    pub fn symbol(&self, name: &str) -> Option<(u64, usize)> {
        self.symbols
            .get(name)
            .map(|(offset, size)| (self.base + *offset as u64, *size))
    }

    /// The addresses of all variables.
    pub fn range(&self) -> Range<u64> {
        debug_assert!(self.memory.len() * 16 >= self.bytes);
        self.base..self.base + self.bytes as u64
    }

    /// The text at an address, up to its zero byte; for messages.
    pub fn text(&self, address: u64) -> String {
        let mut bytes = Vec::new();
        for address in address..self.range().end.max(address) {
            if !self.range().contains(&address) {
                break;
            }
            // SAFETY: the address lies in `memory`, which lives as long as `self`.
            match unsafe { (address as *const u8).read() } {
                0 => break,
                byte => bytes.push(byte),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
