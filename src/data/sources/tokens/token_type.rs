/// How a file stores a token: an unsigned integer, the least significant byte first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenType {
    /// One byte, such as raw text.
    U8,
    /// Two bytes, for vocabularies of up to 65,536 tokens.
    U16,
    /// Four bytes.
    U32,
}

impl TokenType {
    /// Returns the bytes of a token.
    #[must_use]
    pub fn size_in_bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::U32 => 4,
        }
    }

    /// The largest token.
    pub(super) fn max(self) -> u32 {
        match self {
            Self::U8 => u8::MAX.into(),
            Self::U16 => u16::MAX.into(),
            Self::U32 => u32::MAX,
        }
    }

    /// Appends the tokens of some bytes. The iterators know their length, so that the loops have no branch and are vectorized.
    pub(super) fn widen(self, bytes: &[u8], tokens: &mut Vec<u32>) {
        match self {
            Self::U8 => tokens.extend(bytes.iter().map(|byte| u32::from(*byte))),
            Self::U16 => {
                let (bytes, _) = bytes.as_chunks();
                tokens.extend(
                    bytes
                        .iter()
                        .map(|token| u32::from(u16::from_le_bytes(*token))),
                );
            }
            Self::U32 => {
                let (bytes, _) = bytes.as_chunks();
                tokens.extend(bytes.iter().map(|token| u32::from_le_bytes(*token)));
            }
        }
    }
}
