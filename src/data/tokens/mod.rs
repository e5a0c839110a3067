//! Tokens, in raw files or in memory.

mod builder;

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Tensor};

pub use builder::TokensBuilder;

use crate::data::dataset::{Concat, Dataset, out_of_range};
use crate::data::name_of;
use crate::data::starts::Starts;
use crate::error::{BoxedError, DataError, Error, invalid};
use crate::fixed_file::FixedFile;

/// Raw files of tokens, or a list of them: a sample is a window of one, or a document.
///
/// A file holds token after token as unsigned integers, the least significant byte first, as the tools of many language models
/// write them. A header of llm.c is recognised. A sample is a view ([`TokenWindow`]), whose tokens are read from the file when they are
/// needed; [`stack_tokens`](super::stack_tokens) reads a tensor of several. [`from_vec`](Self::from_vec) takes tokens that are in memory.
///
/// Several files are one dataset, in the order in which they are given, such as that of [`glob`](super::glob). No window and no document goes
/// over the end of a file. Each file is open and may store its tokens in another type, if its header says so.
///
/// A file must stay as it is: once its length or its modification time has changed, reading is an error. To replace it, write a new
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
/// let tokens = Tokens::builder([&path]).window(5).stride(4).open()?;
/// assert_eq!(tokens.len(), 2); // the last token is in no window
/// assert_eq!(tokens.get(1)?.to_vec()?, [4, 5, 6, 7, 8]);
/// let batch = stack_tokens(vec![tokens.get(0)?, tokens.get(1)?])?;
/// assert_eq!(batch.dims(), [2, 5]);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tokens {
    files: Arc<Concat<Part>>,
}

/// The samples of one file, or of a list.
#[derive(Debug)]
struct Part {
    content: Arc<Content>,
    cut: Cut,
}

/// Where samples begin and end, in tokens.
#[derive(Debug)]
enum Cut {
    Windows {
        window: usize,
        stride: usize,
        count: usize,
    },
    Documents {
        starts: Starts<usize>,
        /// Their last token.
        end: u32,
        /// Of all documents.
        tokens: usize,
    },
}

impl Part {
    fn range(&self, index: usize) -> Result<Range<usize>, BoxedError> {
        let range = match &self.cut {
            Cut::Windows {
                window,
                stride,
                count,
            } => (index < *count).then(|| index * stride..index * stride + window),
            Cut::Documents {
                starts,
                end,
                tokens,
            } => {
                let found = starts.get(index, |from, to| {
                    let mut starts = Vec::new();
                    let range = from..to.unwrap_or(*tokens);
                    self.content.documents(range, *end, |at| starts.push(at))?;
                    Ok::<_, DataError>(starts)
                })?;
                found.map(|(start, next)| start..next.unwrap_or(*tokens))
            }
        };
        Ok(range.ok_or_else(|| out_of_range(self, index))?)
    }
}

impl Dataset for Part {
    type Sample = TokenWindow;

    fn len(&self) -> usize {
        match &self.cut {
            Cut::Windows { count, .. } => *count,
            Cut::Documents { starts, .. } => starts.len(),
        }
    }

    fn get(&self, index: usize) -> Result<TokenWindow, BoxedError> {
        Ok(TokenWindow {
            range: self.range(index)?,
            content: Arc::clone(&self.content),
        })
    }

    fn cost(&self, index: usize) -> Result<usize, BoxedError> {
        Ok(self.range(index)?.len())
    }

    fn name(&self) -> String {
        self.content.name()
    }
}

impl Tokens {
    fn locate(&self, index: usize) -> Result<(&Part, usize), Error> {
        let found = self.files.locate(index);
        found.ok_or_else(|| out_of_range(self, index))
    }
}

impl Dataset for Tokens {
    type Sample = TokenWindow;

    fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns a view of a window or a document; its tokens are not read yet.
    ///
    /// # Errors
    /// An [error of data](crate::Error::is_data) for an index out of range, and [`DataError::File`] if a document's file has to be read to find it
    /// ([`index_bytes`](TokensBuilder::index_bytes)) and cannot be, or has changed.
    fn get(&self, index: usize) -> Result<TokenWindow, BoxedError> {
        let (file, within) = self.locate(index)?;
        file.get(within)
    }

    /// Returns the number of tokens.
    fn cost(&self, index: usize) -> Result<usize, BoxedError> {
        let (file, within) = self.locate(index)?;
        file.cost(within)
    }

    fn name(&self) -> String {
        match self.files.datasets() {
            [only] => only.name(),
            files => name_of(
                files
                    .iter()
                    .filter_map(|file| file.content.path())
                    .collect::<Vec<_>>()
                    .into_iter(),
            ),
        }
    }

    /// Returns blocks of 1,024 samples, each of one file.
    fn blocks(&self) -> Vec<usize> {
        self.files.blocks()
    }
}

/// Consecutive tokens, which are read when they are needed: the sample of [`Tokens`](super::Tokens). It keeps the file open.
///
/// ```
/// use candle_headroom::data::{Dataset, Tokens};
///
/// let tokens = Tokens::from_vec(vec![5, 6, 7, 8]).window(3).open()?;
/// let window = tokens.get(0)?;
/// assert_eq!((window.len(), window.is_empty()), (3, false));
/// assert_eq!(window.to_vec()?, [5, 6, 7]);
/// # Ok::<(), candle_headroom::error::BoxedError>(())
/// ```
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
    /// ```
    /// use candle_headroom::data::{Dataset, Tokens};
    ///
    /// let tokens = Tokens::from_vec(vec![5, 6, 7, 8]).window(2).open()?;
    /// let mut all = vec![0];
    /// tokens.get(1)?.write_u32(&mut all)?;
    /// assert_eq!(all, [0, 7, 8]);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// [`DataError::File`] if the file cannot be read or has changed since it was opened.
    pub fn write_u32(&self, tokens: &mut Vec<u32>) -> Result<(), DataError> {
        let before = tokens.len();
        let content = &self.content;
        let read = content.append(self.range.clone(), &mut Vec::new(), tokens);
        let read = read.and_then(|()| content.check());
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
}

/// Makes one tensor of windows of equal length: `u32`, `[windows, tokens]`, on the CPU.
///
/// It is a collate function for a loader of [`Tokens`](super::Tokens).
///
/// ```
/// use candle_headroom::data::{Loader, Tokens, stack_tokens};
///
/// let tokens = Tokens::from_vec((0..9).collect()).window(3).open()?;
/// let mut loader = Loader::builder(tokens, stack_tokens).batch(2).build()?;
/// let batch = loader.next().expect("a batch")?;
/// assert_eq!(batch.to_vec2::<u32>()?, [[0, 1, 2], [3, 4, 5]]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// # Errors
/// An [error of data](crate::Error::is_data) if there is no window or if the lengths differ, as those of documents do, and
/// [`DataError::File`] if a file cannot be read or has changed since it was opened.
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
        let range = window.range.clone();
        window.content.append(range, &mut bytes, &mut tokens)?;
    }
    // Once for windows of the same file, after they were read.
    for same in windows.chunk_by(|a, b| Arc::ptr_eq(&a.content, &b.content)) {
        same.first()
            .map_or(Ok(()), |window| window.content.check())?;
    }
    let shape = (windows.len(), len);
    Ok(Tensor::from_vec(tokens, shape, &Device::Cpu)?)
}

/// Tokens in a file or in memory.
enum Content {
    File {
        file: FixedFile,
        token: TokenType,
        /// Where the first token is, in bytes.
        header: usize,
    },
    Memory(Vec<u32>),
}

impl Content {
    fn path(&self) -> Option<&Path> {
        match self {
            Self::File { file, .. } => Some(file.path()),
            Self::Memory(_) => None,
        }
    }

    fn name(&self) -> String {
        let path = self.path().map(|path| path.display().to_string());
        path.unwrap_or_else(|| "tokens in memory".to_owned())
    }

    /// Reads a range, which begins with a document, and gives the start of each document in it.
    fn documents(
        &self,
        range: Range<usize>,
        end: u32,
        mut found: impl FnMut(usize),
    ) -> Result<(), DataError> {
        /// Tokens that are read at once.
        const PIECE: usize = 1 << 17;
        let (mut bytes, mut piece) = (Vec::new(), Vec::new());
        found(range.start);
        for start in range.clone().step_by(PIECE) {
            piece.clear();
            self.append(start..range.end.min(start + PIECE), &mut bytes, &mut piece)?;
            let ends = piece.iter().enumerate().filter(|(_, token)| **token == end);
            let after = ends.map(|(at, _)| start + at + 1);
            after.filter(|at| *at < range.end).for_each(&mut found);
        }
        self.check()
    }

    /// Appends the tokens of a range to `tokens`. Those of a file are read into `bytes` first, and the file is not checked for changes.
    fn append(
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
    fn check(&self) -> Result<(), DataError> {
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
///
/// ```
/// use candle_headroom::data::TokenType;
///
/// let types = [TokenType::U8, TokenType::U16, TokenType::U32];
/// assert_eq!(types.map(TokenType::size_in_bytes), [1, 2, 4]);
/// ```
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
    /// Returns the number of bytes of a token.
    #[must_use]
    pub fn size_in_bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::U32 => 4,
        }
    }

    /// The largest token.
    fn max(self) -> u32 {
        u32::MAX >> (32 - 8 * self.size_in_bytes())
    }

    /// Appends the tokens of some bytes. The iterators know their length, so that the loops have no branch and are vectorized.
    fn widen(self, bytes: &[u8], tokens: &mut Vec<u32>) {
        match self {
            Self::U8 => tokens.extend(bytes.iter().map(|byte| u32::from(*byte))),
            Self::U16 => {
                let (bytes, _) = bytes.as_chunks();
                let narrow = bytes.iter().map(|token| u16::from_le_bytes(*token));
                tokens.extend(narrow.map(u32::from));
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
fn read_header(
    file: &FixedFile,
    asked: Option<TokenType>,
) -> Result<Option<(TokenType, usize)>, DataError> {
    if file.len() < BYTES {
        return Ok(None);
    }
    let mut first = [[0; 4]; 3];
    let read = file.read_at(first.as_flattened_mut(), 0);
    read.map_err(|reason| DataError::io(file.path(), 0, reason))?;
    let [magic, version, count] = first.map(u32::from_le_bytes);
    let (known, token) = match magic {
        20_240_520 => (1, TokenType::U16),
        20_240_801 => (7, TokenType::U32),
        _ => return Ok(None),
    };
    let (bytes, size) = (file.len() - BYTES, token.size_in_bytes() as u64);
    let problem = if version != known {
        format!("version {version}, and version {known} is supported")
    } else if asked.is_some_and(|asked| asked != token) {
        format!("tokens of type {token:?}: leave out `dtype`, or set that type")
    } else if bytes != u64::from(count) * size {
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
