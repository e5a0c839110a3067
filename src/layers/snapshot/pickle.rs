//! Writes Python's pickle format, protocol 4, with the opcodes that PyTorch's viewer reads.
//!
//! The viewer knows protocols 2 to 4 and few opcodes, none of them for bytes, sets or large strings. The crate serde-pickle writes
//! protocols 2 and 3, and each string and list in full, which would make such a file several times as large.

use std::collections::HashMap;
use std::io::{Result, Write};

const PROTO: u8 = 0x80;
const STOP: u8 = b'.';
const MARK: u8 = b'(';
const EMPTY_DICT: u8 = b'}';
const SETITEMS: u8 = b'u';
const EMPTY_LIST: u8 = b']';
const APPENDS: u8 = b'e';
const BININT: u8 = b'J';
const BININT1: u8 = b'K';
const BININT2: u8 = b'M';
const LONG1: u8 = 0x8a;
const SHORT_BINUNICODE: u8 = 0x8c;
const BINUNICODE: u8 = b'X';
const MEMOIZE: u8 = 0x94;
const BINGET: u8 = b'h';
const LONG_BINGET: u8 = b'j';

/// Items that are appended at once, as in Python. The viewer passes them to a function, which takes a limited number of them.
const BATCH: usize = 1000;

/// A value that was written before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memo(u32);

pub(super) struct Pickle<W> {
    to: W,
    texts: HashMap<String, Memo>,
    memos: u32,
}

impl<W: Write> Pickle<W> {
    pub(super) fn new(mut to: W) -> Result<Self> {
        to.write_all(&[PROTO, 4])?;
        Ok(Self {
            to,
            texts: HashMap::new(),
            memos: 0,
        })
    }

    /// Ends the file.
    pub(super) fn finish(mut self) -> Result<()> {
        self.to.write_all(&[STOP])
    }

    /// Writes a dict; `fill` writes its keys and values in turn.
    pub(super) fn dict(&mut self, fill: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.to.write_all(&[EMPTY_DICT, MARK])?;
        fill(self)?;
        self.to.write_all(&[SETITEMS])
    }

    /// Writes a list; `write` writes an item as one value.
    pub(super) fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T) -> Result<()>,
    ) -> Result<()> {
        self.to.write_all(&[EMPTY_LIST])?;
        let mut items = items.into_iter().peekable();
        while items.peek().is_some() {
            self.to.write_all(&[MARK])?;
            for item in items.by_ref().take(BATCH) {
                write(self, item)?;
            }
            self.to.write_all(&[APPENDS])?;
        }
        Ok(())
    }

    /// Writes a key and a text.
    pub(super) fn text_at(&mut self, key: &str, text: &str) -> Result<()> {
        self.text(key)?;
        self.text(text)
    }

    /// Writes a key and a number.
    pub(super) fn number_at(&mut self, key: &str, number: u64) -> Result<()> {
        self.text(key)?;
        self.number(i64::try_from(number).unwrap_or(i64::MAX))
    }

    /// Writes a text, or a reference if it was written before.
    pub(super) fn text(&mut self, text: &str) -> Result<()> {
        if let Some(memo) = self.texts.get(text) {
            return self.again(*memo);
        }
        let length = u32::try_from(text.len()).map_err(std::io::Error::other)?;
        match u8::try_from(length) {
            Ok(length) => self.to.write_all(&[SHORT_BINUNICODE, length])?,
            Err(_) => {
                self.to.write_all(&[BINUNICODE])?;
                self.to.write_all(&length.to_le_bytes())?;
            }
        }
        self.to.write_all(text.as_bytes())?;
        let memo = self.memoize()?;
        self.texts.insert(text.to_owned(), memo);
        Ok(())
    }

    fn number(&mut self, number: i64) -> Result<()> {
        let bytes = number.to_le_bytes();
        let [first, second, ..] = bytes;
        if let Ok(byte) = u8::try_from(number) {
            self.to.write_all(&[BININT1, byte])
        } else if u16::try_from(number).is_ok() {
            self.to.write_all(&[BININT2, first, second])
        } else if let Ok(number) = i32::try_from(number) {
            self.to.write_all(&[BININT])?;
            self.to.write_all(&number.to_le_bytes())
        } else {
            // As many bytes as the number and its sign take.
            let bits = i64::BITS - (number ^ (number >> 63)).leading_zeros();
            let length = bits / 8 + 1;
            self.to.write_all(&[LONG1, length as u8])?;
            self.to
                .write_all(bytes.get(..length as usize).unwrap_or(&bytes))
        }
    }

    /// Remembers the value that was just written.
    pub(super) fn memoize(&mut self) -> Result<Memo> {
        let memo = Memo(self.memos);
        self.memos += 1;
        self.to.write_all(&[MEMOIZE])?;
        Ok(memo)
    }

    /// Writes a remembered value again.
    pub(super) fn again(&mut self, Memo(number): Memo) -> Result<()> {
        match u8::try_from(number) {
            Ok(number) => self.to.write_all(&[BINGET, number]),
            Err(_) => {
                self.to.write_all(&[LONG_BINGET])?;
                self.to.write_all(&number.to_le_bytes())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Pickle<&mut Vec<u8>>) -> Result<()>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut pickle = Pickle::new(&mut bytes).unwrap();
        write(&mut pickle).unwrap();
        pickle.finish().unwrap();
        bytes
    }

    /// As Python's `pickle.dumps(…, 4)` writes them, without its frames.
    #[test]
    fn numbers_take_the_shortest_form() {
        let cases: [(i64, &[u8]); 7] = [
            (255, b"K\xff"),
            (65_536, b"J\x00\x00\x01\x00"),
            (-1, b"J\xff\xff\xff\xff"),
            (i64::from(i32::MIN), b"J\x00\x00\x00\x80"),
            (1 << 31, b"\x8a\x05\x00\x00\x00\x80\x00"),
            (0x7fff_ffff_f000, b"\x8a\x06\x00\xf0\xff\xff\xff\x7f"),
            (i64::MIN, b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80"),
        ];
        for (number, expected) in cases {
            let bytes = written(|pickle| pickle.number(number));
            let inner = bytes.strip_prefix(b"\x80\x04").unwrap();
            assert_eq!(inner.strip_suffix(b".").unwrap(), expected, "{number}");
        }
    }

    #[test]
    fn a_text_is_written_once() {
        let bytes =
            written(|pickle| pickle.list(["ab", "ä", "ab"], |pickle, text| pickle.text(text)));
        let expected = b"\x80\x04](\x8c\x02ab\x94\x8c\x02\xc3\xa4\x94h\x00e.";
        assert_eq!(bytes, expected);
    }

    #[test]
    fn long_lists_and_texts_are_written_in_parts() {
        let bytes = written(|pickle| pickle.list(0..2001, |pickle, _| pickle.number(0)));
        let appends = bytes.iter().filter(|byte| **byte == APPENDS).count();
        assert_eq!(appends, 3);
        let bytes = written(|pickle| pickle.list([(); 0], |_, ()| Ok(())));
        assert_eq!(bytes, b"\x80\x04].");
        let long = "x".repeat(256);
        let bytes = written(|pickle| pickle.text(&long));
        assert!(bytes.starts_with(b"\x80\x04X\x00\x01\x00\x00xxx"));
    }
}
