use std::path::PathBuf;
use std::sync::Arc;

use super::dataset::Cut;
use super::{TokenType, Tokens};
use crate::data::sources::mapped::Mapped;
use crate::error::{DataError, Result};

/// Settings of [`Tokens`], from [`Tokens::builder`].
#[derive(Debug, Clone)]
#[must_use]
pub struct TokensBuilder {
    path: PathBuf,
    token: TokenType,
    header: usize,
    window: usize,
    stride: Option<usize>,
    end: Option<u32>,
}

impl Tokens {
    /// Describes a file of tokens.
    pub fn builder(path: impl Into<PathBuf>) -> TokensBuilder {
        TokensBuilder {
            path: path.into(),
            token: TokenType::U16,
            header: 0,
            window: 0,
            stride: None,
            end: None,
        }
    }
}

impl TokensBuilder {
    /// Sets how the file stores a token; [`TokenType::U16`] by default.
    pub fn dtype(mut self, token: TokenType) -> Self {
        self.token = token;
        self
    }

    /// Sets the number of bytes before the first token; none by default.
    pub fn skip_header(mut self, bytes: usize) -> Self {
        self.header = bytes;
        self
    }

    /// Makes samples of so many tokens each. A model that predicts the next token of a context of 1,024 needs 1,025.
    pub fn window(mut self, tokens: usize) -> Self {
        self.window = tokens;
        self
    }

    /// Sets the number of tokens from the start of a window to the start of the next; by default that of a window, so that none
    /// overlap. Tokens at the end that do not fill a window are in no sample.
    pub fn stride(mut self, tokens: usize) -> Self {
        self.stride = Some(tokens);
        self
    }

    /// Makes samples of whole documents instead of windows. A document ends with the token `end`, which is part of it; the last one
    /// ends with the file. The file is read once on opening, and 8 bytes are kept for each document.
    pub fn documents(mut self, end: u32) -> Self {
        self.end = Some(end);
        self
    }

    /// Maps the file.
    ///
    /// # Errors
    /// [`DataError::Setting`] if neither a window nor documents are asked for, or both, if the stride is 0, or if the end token does
    /// not fit into a token's bytes. [`DataError::File`] if the file cannot be read, is empty, holds a part of a token, or is shorter
    /// than a window.
    pub fn open(self) -> Result<Tokens> {
        self.check()?;
        let map = Mapped::open(&self.path)?;
        let tokens = self.count(&map)?;
        let cut = match self.end {
            Some(end) => Cut::Documents(self.document_ends(&map, end)?.into()),
            None => self.windows(tokens)?,
        };
        Ok(Tokens {
            map: Arc::new(map),
            token: self.token,
            header: self.header,
            cut: Arc::new(cut),
        })
    }

    fn check(&self) -> Result<(), DataError> {
        let problem = match self.end {
            None if self.window == 0 => {
                "set `window` to at least 1 token, or `documents`".to_owned()
            }
            None if self.stride == Some(0) => {
                "the stride must be at least 1 token, got 0".to_owned()
            }
            Some(_) if self.window > 0 || self.stride.is_some() => {
                "`documents` cannot be combined with `window` or `stride`".to_owned()
            }
            Some(end) if end > self.token.max() => {
                format!(
                    "the end token must be at most {}, got {end}",
                    self.token.max()
                )
            }
            _ => return Ok(()),
        };
        let path = self.path.display();
        Err(DataError::Setting(format!("{path}: {problem}")))
    }

    /// The number of tokens in the file.
    fn count(&self, map: &Mapped) -> Result<usize, DataError> {
        let (len, size) = (map.len(), self.token.size_in_bytes());
        let bytes = len.checked_sub(self.header).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or_else(|| {
            let problem = format!("no token follows the header of {} bytes", self.header);
            DataError::file(&self.path, len as u64, problem)
        })?;
        if bytes % size != 0 {
            let problem = format!("the last token has {} of {size} bytes", bytes % size);
            let offset = (len - bytes % size) as u64;
            return Err(DataError::file(&self.path, offset, problem));
        }
        Ok(bytes / size)
    }

    fn windows(&self, tokens: usize) -> Result<Cut, DataError> {
        let window = self.window;
        let stride = self.stride.unwrap_or(window);
        match tokens.checked_sub(window) {
            Some(rest) => Ok(Cut::Windows {
                window,
                stride,
                count: rest / stride + 1,
            }),
            None => {
                let problem = format!("has {tokens} tokens, less than a window of {window}");
                Err(DataError::file(&self.path, None, problem))
            }
        }
    }

    fn document_ends(&self, map: &Mapped, end: u32) -> Result<Vec<usize>, DataError> {
        const TOKENS: usize = 1 << 14;
        let (mut ends, mut tokens, mut before) = (Vec::new(), Vec::new(), 0);
        for bytes in map
            .bytes(self.header..map.len())?
            .chunks(TOKENS * self.token.size_in_bytes())
        {
            tokens.clear();
            self.token.widen(bytes, &mut tokens);
            let found = tokens
                .iter()
                .enumerate()
                .filter(|(_, token)| **token == end);
            ends.extend(found.map(|(at, _)| before + at + 1));
            before += tokens.len();
        }
        if ends.last() != Some(&before) {
            ends.push(before);
        }
        Ok(ends)
    }
}
