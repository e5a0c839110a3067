//! Splits PTX text into words, numbers, strings and punctuation.

/// The tokens of a piece of text; a token is the slice of text that spells it.
pub fn tokens(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let mut found = Vec::with_capacity(text.len() / 5);
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        match bytes[at] {
            byte if byte.is_ascii_whitespace() => at += 1,
            b'/' if text[at..].starts_with("//") => at = line_end(text, at),
            b'/' if text[at..].starts_with("/*") => {
                at = text[at..].find("*/").map_or(text.len(), |n| at + n + 2)
            }
            b'"' => {
                at = text[at + 1..].find('"').map_or(text.len(), |n| at + n + 2);
                found.push(&text[start..at]);
            }
            byte if is_word(byte) => {
                at += 1;
                // Directives may follow each other without a space: `.reg.b32`.
                while at < bytes.len() && is_word(bytes[at]) && !(byte == b'.' && bytes[at] == b'.')
                {
                    at += 1;
                }
                // Line directives end at the end of the line, without a semicolon.
                match &text[start..at] {
                    ".loc" | ".file" => at = line_end(text, at),
                    word => found.push(word),
                }
            }
            _ => {
                at += 1;
                while !text.is_char_boundary(at) {
                    at += 1;
                }
                found.push(&text[start..at]);
            }
        }
    }
    found
}

/// The end of the line that contains position `at`.
pub fn line_end(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |n| at + n)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

/// The value of an integer literal: decimal, hexadecimal, octal or binary, with an optional `U`.
pub fn integer(text: &str) -> Option<u64> {
    let text = text.strip_suffix('U').unwrap_or(text);
    let parse = |digits: &str, radix| u64::from_str_radix(digits, radix).ok();
    match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => parse(&text[2..], 16),
        [b'0', b'b' | b'B', ..] => parse(&text[2..], 2),
        [b'0', _, ..] => parse(&text[1..], 8),
        _ => parse(text, 10),
    }
}

/// The value of a floating-point literal: `0f` with 8 hexadecimal digits, `0d` with 16, or decimal.
pub fn float(text: &str) -> Option<f64> {
    let bits = |digits: &str| u64::from_str_radix(digits, 16).ok();
    match text.as_bytes() {
        [b'0', b'f' | b'F', ..] => {
            Some(f32::from_bits(u32::try_from(bits(&text[2..])?).ok()?) as f64)
        }
        [b'0', b'd' | b'D', ..] => Some(f64::from_bits(bits(&text[2..])?)),
        _ if text.contains('.') => text.parse().ok(),
        _ => None,
    }
}
