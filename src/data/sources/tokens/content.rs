use std::fmt;
use std::ops::Range;

use super::TokenType;
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
