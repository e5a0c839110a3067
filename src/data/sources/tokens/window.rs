use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::TokenType;
use crate::data::sources::mapped::Mapped;
use crate::error::DataError;

/// Consecutive tokens of a mapped file, not copied: the sample of [`Tokens`](super::Tokens). It keeps the map alive.
#[derive(Clone)]
pub struct TokenWindow {
    pub(super) map: Arc<Mapped>,
    /// In bytes.
    pub(super) range: Range<usize>,
    pub(super) token: TokenType,
}

impl TokenWindow {
    /// Returns the number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len() / self.token.size_in_bytes()
    }

    /// Returns whether there is no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Appends the tokens to a vector.
    ///
    /// # Errors
    /// [`DataError::File`] if the file was shortened while it was open.
    pub fn write_u32(&self, tokens: &mut Vec<u32>) -> Result<(), DataError> {
        self.check()?;
        self.token.widen(self.bytes(), tokens);
        Ok(())
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

    /// Checks that the file was not shortened.
    pub(super) fn check(&self) -> Result<(), DataError> {
        self.map.check()
    }

    /// The tokens as the file stores them, after [`check`](Self::check).
    pub(super) fn bytes(&self) -> &[u8] {
        self.map.checked(self.range.clone())
    }
}

impl fmt::Debug for TokenWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut window = f.debug_struct("TokenWindow");
        window.field("path", &self.map.path());
        window.field("bytes", &self.range);
        window.field("token", &self.token).finish()
    }
}
