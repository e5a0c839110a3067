use std::ops::Range;
use std::sync::Arc;

use super::content::Content;
use crate::error::DataError;

/// Consecutive tokens, which are read when they are needed: the sample of [`Tokens`](super::Tokens). It keeps the file open.
#[derive(Debug, Clone)]
pub struct TokenWindow {
    pub(super) content: Arc<Content>,
    pub(super) range: Range<usize>,
}

impl TokenWindow {
    /// Returns the number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns whether there is no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Appends the tokens to a vector, which stays as it is after an error.
    ///
    /// # Errors
    /// [`DataError::File`] if the file cannot be read or has changed since it was opened.
    pub fn write_u32(&self, tokens: &mut Vec<u32>) -> Result<(), DataError> {
        let before = tokens.len();
        let read = self.append(&mut Vec::new(), tokens);
        let read = read.and_then(|()| self.content.check());
        read.inspect_err(|_| tokens.truncate(before))
    }

    /// Returns the tokens.
    ///
    /// # Errors
    /// Those of [`write_u32`](Self::write_u32).
    pub fn to_vec(&self) -> Result<Vec<u32>, DataError> {
        let mut tokens = Vec::new();
        self.write_u32(&mut tokens)?;
        Ok(tokens)
    }

    /// Appends the tokens by way of `bytes`, without checking the file for changes.
    pub(super) fn append(
        &self,
        bytes: &mut Vec<u8>,
        tokens: &mut Vec<u32>,
    ) -> Result<(), DataError> {
        self.content.append(self.range.clone(), bytes, tokens)
    }
}
