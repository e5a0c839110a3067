//! Tokens, in raw files or in memory.

mod builder;
mod content;

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Tensor};

pub use builder::TokensBuilder;
pub use content::TokenType;

use crate::data::dataset::{Dataset, out_of_range};
use crate::error::{BoxedError, DataError, invalid};
use content::Content;

/// A raw file of tokens, or a list of them: a sample is a window of it, or a document.
///
/// The file holds token after token as unsigned integers, the least significant byte first, as the tools of many language models
/// write them. A header of llm.c is recognised. A sample is a view ([`TokenWindow`]), whose tokens are read from the file when they are
/// needed; [`stack_tokens`](super::stack_tokens) reads a tensor of several. [`from_vec`](Self::from_vec) takes tokens that are in memory.
///
/// The file must stay as it is: once its length or its modification time has changed, reading is an error. To replace it, write a new
/// file and rename that; a dataset that is open keeps the old one.
///
/// ```
/// use candle_headroom::data::{Dataset, Tokens, stack_tokens};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("train.bin");
/// let tokens: Vec<u8> = (0..10u16).flat_map(u16::to_le_bytes).collect();
/// std::fs::write(&path, tokens)?;
///
/// // A context of 4 tokens: the window has one more, and the next window begins with it.
/// let tokens = Tokens::builder(&path).window(5).stride(4).open()?;
/// assert_eq!(tokens.len(), 2); // the last token is in no window
/// assert_eq!(tokens.get(1)?.to_vec()?, [4, 5, 6, 7, 8]);
/// let batch = stack_tokens(vec![tokens.get(0)?, tokens.get(1)?])?;
/// assert_eq!(batch.dims(), [2, 5]);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tokens {
    content: Arc<Content>,
    cut: Arc<Cut>,
}

/// Where samples begin and end, in tokens.
#[derive(Debug)]
enum Cut {
    Windows {
        window: usize,
        stride: usize,
        count: usize,
    },
    /// The ends of the documents, the last tokens included.
    Documents(Box<[usize]>),
}

impl Cut {
    fn len(&self) -> usize {
        match self {
            Self::Windows { count, .. } => *count,
            Self::Documents(ends) => ends.len(),
        }
    }

    fn range(&self, index: usize) -> Option<Range<usize>> {
        match self {
            Self::Windows {
                window,
                stride,
                count,
            } => (index < *count).then(|| index * stride..index * stride + window),
            Self::Documents(ends) => {
                let end = *ends.get(index)?;
                let start = index.checked_sub(1).and_then(|before| ends.get(before));
                Some(start.copied().unwrap_or(0)..end)
            }
        }
    }
}

impl Dataset for Tokens {
    type Sample = TokenWindow;

    fn len(&self) -> usize {
        self.cut.len()
    }

    /// Returns a view of a window or a document; the file is not touched.
    ///
    /// # Errors
    /// An [error of data](crate::Error::is_data) for an index out of range.
    fn get(&self, index: usize) -> Result<TokenWindow, BoxedError> {
        let range = self
            .cut
            .range(index)
            .ok_or_else(|| out_of_range(self, index))?;
        Ok(TokenWindow {
            content: Arc::clone(&self.content),
            range,
        })
    }

    /// Returns the number of tokens.
    fn cost(&self, index: usize) -> usize {
        self.cut.range(index).map_or(1, |range| range.len())
    }

    fn name(&self) -> String {
        self.content.name()
    }
}

/// Consecutive tokens, which are read when they are needed: the sample of [`Tokens`](super::Tokens). It keeps the file open.
#[derive(Debug, Clone)]
pub struct TokenWindow {
    content: Arc<Content>,
    range: Range<usize>,
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
    fn append(&self, bytes: &mut Vec<u8>, tokens: &mut Vec<u32>) -> Result<(), DataError> {
        self.content.append(self.range.clone(), bytes, tokens)
    }
}

/// Makes one tensor of windows of equal length: `u32`, `[windows, tokens]`, on the CPU.
///
/// It is a collate function for a loader of [`Tokens`](super::Tokens).
///
/// # Errors
/// An [error of data](crate::Error::is_data) if there is no window or if the lengths differ, as those of documents do, and
/// [`DataError::File`](crate::error::DataError::File) if a file cannot be read or has changed since it was opened.
pub fn stack_tokens(windows: Vec<TokenWindow>) -> Result<Tensor, BoxedError> {
    let len = match windows.first() {
        Some(first) => first.len(),
        None => return Err(invalid!(Data, "no windows to stack").into()),
    };
    let mut lengths = windows.iter().map(TokenWindow::len).enumerate();
    if let Some((other, found)) = lengths.find(|(_, found)| *found != len) {
        return Err(invalid!(
            Data,
            "windows of equal length are stacked: window 0 has {len} tokens, window {other} \
             has {found}; `Pad` and `Pack` take documents"
        )
        .into());
    }
    let mut tokens = Vec::with_capacity(windows.len() * len);
    // Of one window: what the system copies into it is still in the core's first cache when it is widened.
    let mut bytes = Vec::new();
    for window in &windows {
        window.append(&mut bytes, &mut tokens)?;
    }
    // Once for windows of the same file, after they were read.
    for same in windows.chunk_by(|a, b| Arc::ptr_eq(&a.content, &b.content)) {
        same.first()
            .map_or(Ok(()), |window| window.content.check())?;
    }
    Ok(Tensor::from_vec(
        tokens,
        (windows.len(), len),
        &Device::Cpu,
    )?)
}
