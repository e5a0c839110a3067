use std::fmt;
use std::ops::Range;

use crate::error::DataError;
use crate::fixed_file::FixedFile;

/// Tokens in a file or in memory.
pub(super) enum Content {
    File {
        file: FixedFile,
        token: TokenType,
        /// Where the first token is, in bytes.
        header: usize,
    },
    Memory(Vec<u32>),
}

impl Content {
    pub(super) fn name(&self) -> String {
        match self {
            Self::File { file, .. } => file.path().display().to_string(),
            Self::Memory(_) => "tokens in memory".to_owned(),
        }
    }

    /// Appends the tokens of a range to `tokens`. Those of a file are read into `bytes` first, and the file is not checked for changes.
    pub(super) fn append(
        &self,
        range: Range<usize>,
        bytes: &mut Vec<u8>,
        tokens: &mut Vec<u32>,
    ) -> Result<(), DataError> {
        match self {
            Self::File {
                file,
                token,
                header,
            } => {
                let size = token.size_in_bytes();
                let at = (header + range.start * size) as u64;
                // What is there of another range is overwritten.
                bytes.resize(range.len() * size, 0);
                let read = file.read_at(bytes, at);
                read.map_err(|reason| DataError::io(file.path(), at, reason))?;
                token.widen(bytes, tokens);
            }
            Self::Memory(all) => tokens.extend_from_slice(all.get(range).unwrap_or_default()),
        }
        Ok(())
    }

    /// Checks that the file has not changed.
    pub(super) fn check(&self) -> Result<(), DataError> {
        match self {
            Self::File { file, .. } => {
                let check = file.check();
                check.map_err(|reason| DataError::io(file.path(), None, reason))
            }
            Self::Memory(_) => Ok(()),
        }
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Content").field(&self.name()).finish()
    }
}

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

/// The length of the header that llm.c's scripts write: 256 integers of 32 bits, of which the first three are a magic number, the version
/// and the number of tokens.
const BYTES: u64 = 1024;

/// The type of the tokens and the bytes before the first one, of a file that begins with such a header. `asked` is the type that the
/// caller has set.
pub(super) fn read_header(
    file: &FixedFile,
    asked: Option<TokenType>,
) -> Result<Option<(TokenType, usize)>, DataError> {
    if file.len() < BYTES {
        return Ok(None);
    }
    let mut first = [0; 12];
    let read = file.read_at(&mut first, 0);
    read.map_err(|reason| DataError::io(file.path(), 0, reason))?;
    let integer = |at: usize| {
        first
            .as_chunks()
            .0
            .get(at)
            .map_or(0, |it| u32::from_le_bytes(*it))
    };
    let (version, count) = (integer(1), u64::from(integer(2)));
    let (known, token) = match integer(0) {
        20_240_520 => (1, TokenType::U16),
        20_240_801 => (7, TokenType::U32),
        _ => return Ok(None),
    };
    let (bytes, size) = (file.len() - BYTES, token.size_in_bytes() as u64);
    let problem = if version != known {
        format!("version {version}, and version {known} is supported")
    } else if asked.is_some_and(|asked| asked != token) {
        format!("tokens of type {token:?}: leave out `dtype`, or set that type")
    } else if bytes != count * size {
        let found = bytes / size;
        format!("{count} tokens, and {found} follow it: the file is not whole")
    } else {
        return Ok(Some((token, BYTES as usize)));
    };
    let problem = format!(
        "begins with llm.c's header, which states {problem}; `skip_header(0)` reads a file without a header, and the header as tokens"
    );
    Err(DataError::file(file.path(), 0, problem))
}
