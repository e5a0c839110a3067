use std::ops::Range;
use std::sync::Arc;

use super::TokenWindow;
use super::content::Content;
use crate::data::dataset::{Dataset, out_of_range};
use crate::error::BoxedError;

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
    pub(super) content: Arc<Content>,
    pub(super) cut: Arc<Cut>,
}

/// Where samples begin and end, in tokens.
#[derive(Debug)]
pub(super) enum Cut {
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
