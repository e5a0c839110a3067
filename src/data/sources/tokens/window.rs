use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::TokenType;
use crate::data::sources::mapped::Mapped;
use crate::error::DataError;

/// Consecutive tokens of a mapped file, not copied: the sample of [`Tokens`](super::Tokens).
///
/// It keeps the map alive. The file's length is checked when the sample is read and again by [`stack_tokens`](super::stack_tokens),
/// not by the methods here.
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
    pub fn write_u32(&self, tokens: &mut Vec<u32>) {
        self.token
            .widen(self.map.checked(self.range.clone()), tokens);
    }

    /// Returns the tokens.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u32> {
        let mut tokens = Vec::new();
        self.write_u32(&mut tokens);
        tokens
    }

    /// Checks that the file was not shortened.
    pub(super) fn check(&self) -> Result<(), DataError> {
        self.map.check()
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
