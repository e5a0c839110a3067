//! The operands of an instruction as written.

use super::token;
use super::types::Type;

/// One operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand<'a> {
    /// A register, a name or a number.
    Word {
        text: &'a str,
        negative: bool,
        inverted: bool,
    },
    /// `d|p`.
    Pair(&'a str, &'a str),
    /// `{a, b}`.
    Vector(Vec<Operand<'a>>),
    /// `(a, b)`, of a call.
    List(Vec<Operand<'a>>),
    /// `[base + offset]`.
    Address { base: &'a str, offset: i64 },
}

impl<'a> Operand<'a> {
    /// A plain name or number.
    pub fn word(text: &'a str) -> Operand<'a> {
        Operand::Word {
            text,
            negative: false,
            inverted: false,
        }
    }

    /// The name, if it is one.
    pub fn name(&self) -> Option<&'a str> {
        match self {
            Operand::Word { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The bits of a number as a value of this type.
    pub fn immediate(&self, kind: Type) -> Option<u64> {
        let Operand::Word { text, negative, .. } = self else {
            return None;
        };
        let sign = if *negative { -1.0 } else { 1.0 };
        let bits = match (token::integer(text), token::float(text)) {
            (Some(value), _) if *negative => value.wrapping_neg(),
            (Some(value), _) => value,
            (None, Some(_)) if single(text) && kind.bytes() == 4 => {
                let bits = u32::from_str_radix(&text[2..], 16).ok()?;
                (if *negative { bits ^ (1 << 31) } else { bits }) as u64
            }
            (None, Some(value)) if kind.bytes() == 4 => ((sign * value) as f32).to_bits() as u64,
            (None, Some(value)) => (sign * value).to_bits(),
            (None, None) if *text == "WARP_SZ" => 32,
            (None, None) => return None,
        };
        let unused = 64 - 8 * kind.bytes() as u32;
        Some(bits << unused >> unused)
    }
}

/// Whether a literal is a 32-bit float's bits.
fn single(text: &str) -> bool {
    matches!(text.as_bytes(), [b'0', b'f' | b'F', ..])
}

/// The operands of an instruction: its tokens after the name.
pub fn operands<'a>(tokens: &[&'a str]) -> Result<Vec<Operand<'a>>, String> {
    let mut at = 0;
    let found = list(tokens, &mut at)?;
    match tokens.get(at) {
        None => Ok(found),
        Some(text) => Err(format!("unexpected {text}")),
    }
}

/// Operands with commas between them, up to a closing bracket.
fn list<'a>(tokens: &[&'a str], at: &mut usize) -> Result<Vec<Operand<'a>>, String> {
    let mut found = Vec::new();
    while let Some(text) = tokens.get(*at) {
        match *text {
            "}" | ")" | "]" => break,
            "," => *at += 1,
            _ => found.push(one(tokens, at)?),
        }
    }
    Ok(found)
}

fn one<'a>(tokens: &[&'a str], at: &mut usize) -> Result<Operand<'a>, String> {
    let first = tokens[*at];
    *at += 1;
    match first {
        "{" | "(" => {
            let inner = list(tokens, at)?;
            let close = tokens.get(*at).copied();
            *at += 1;
            match (first, close) {
                ("{", Some("}")) => Ok(Operand::Vector(inner)),
                ("(", Some(")")) => Ok(Operand::List(inner)),
                _ => Err(format!("{first} is not closed")),
            }
        }
        "[" => {
            let base = tokens.get(*at).copied().ok_or("[ at the end")?;
            *at += 1;
            let (mut offset, mut negative) = (0i64, false);
            while let Some(text) = tokens.get(*at) {
                *at += 1;
                match *text {
                    "]" => return Ok(Operand::Address { base, offset }),
                    "+" => {}
                    "-" => negative = !negative,
                    text => {
                        let value = token::integer(text)
                            .ok_or_else(|| format!("unknown offset {text}"))?
                            as i64;
                        offset = offset.wrapping_add(if negative {
                            value.wrapping_neg()
                        } else {
                            value
                        });
                    }
                }
            }
            Err("[ is not closed".to_owned())
        }
        "-" | "!" if *at >= tokens.len() => Err("a sign at the end".to_owned()),
        "-" | "!" => match one(tokens, at)? {
            Operand::Word {
                text,
                negative,
                inverted,
            } => Ok(Operand::Word {
                text,
                negative: negative ^ (first == "-"),
                inverted: inverted ^ (first == "!"),
            }),
            _ => Err(format!(
                "{first} before something else than a name or number"
            )),
        },
        text if tokens.get(*at) == Some(&"|") => {
            let second = tokens.get(*at + 1).copied().ok_or("| at the end")?;
            *at += 2;
            Ok(Operand::Pair(text, second))
        }
        text => Ok(Operand::word(text)),
    }
}
