use std::path::PathBuf;
use std::sync::Arc;

use super::{Content, Cut, TokenType, Tokens, read_header};
use crate::data::dataset::without_samples;
use crate::data::open;
use crate::error::{DataError, Error, Result, invalid};

/// Settings of [`Tokens`], from [`Tokens::builder`].
///
/// ```
/// # use candle_headroom::data::{Dataset, TokenType, Tokens};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("train.bin");
/// std::fs::write(&path, [1, 0, 2, 0, 3, 0, 4, 0])?; // four tokens of two bytes
/// let tokens = Tokens::builder(&path).dtype(TokenType::U16).window(3).stride(1).open()?;
/// assert_eq!((tokens.len(), tokens.get(1)?.to_vec()?), (2, vec![2, 3, 4]));
/// # Ok::<(), candle_headroom::error::BoxedError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct TokensBuilder {
    source: Source,
    token: Option<TokenType>,
    header: Option<usize>,
    window: usize,
    stride: Option<usize>,
    end: Option<u32>,
}

#[derive(Debug, Clone)]
enum Source {
    File(PathBuf),
    Memory(Vec<u32>),
}

impl Tokens {
    /// Describes a file of tokens. Set [`window`](TokensBuilder::window) or [`documents`](TokensBuilder::documents).
    ///
    /// ```
    /// # use candle_headroom::data::{Dataset, Tokens};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("train.bin");
    /// std::fs::write(&path, [1, 0, 2, 0, 3, 0, 4, 0])?; // of two bytes by default
    /// let tokens = Tokens::builder(&path).window(2).open()?;
    /// assert_eq!((tokens.len(), tokens.get(1)?.to_vec()?), (2, vec![3, 4]));
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn builder(path: impl Into<PathBuf>) -> TokensBuilder {
        TokensBuilder::new(Source::File(path.into()))
    }

    /// Describes tokens that are in memory. Set [`window`](TokensBuilder::window) or [`documents`](TokensBuilder::documents).
    ///
    /// ```
    /// use candle_headroom::data::{Dataset, Tokens};
    ///
    /// let tokens = Tokens::from_vec((0..10).collect()).window(4).stride(3).open()?;
    /// assert_eq!(tokens.len(), 3);
    /// assert_eq!(tokens.get(2)?.to_vec()?, [6, 7, 8, 9]);
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn from_vec(tokens: Vec<u32>) -> TokensBuilder {
        TokensBuilder::new(Source::Memory(tokens))
    }
}

impl TokensBuilder {
    fn new(source: Source) -> Self {
        Self {
            source,
            token: None,
            header: None,
            window: 0,
            stride: None,
            end: None,
        }
    }

    /// Sets how the file stores a token; by default as llm.c's header says, and [`TokenType::U16`] without one.
    ///
    /// ```
    /// # use candle_headroom::data::{Dataset, TokenType, Tokens};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("train.txt");
    /// std::fs::write(&path, "abcdef")?;
    /// let bytes = Tokens::builder(&path).dtype(TokenType::U8).window(3).open()?;
    /// assert_eq!(bytes.get(1)?.to_vec()?, [100, 101, 102]); // d, e, f
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn dtype(mut self, token: TokenType) -> Self {
        self.token = Some(token);
        self
    }

    /// Sets the number of bytes before the first token. By default the header of a file that llm.c's scripts have written is recognised
    /// and left out, and other files have none.
    ///
    /// ```
    /// # use candle_headroom::data::{Dataset, Tokens};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("train.bin");
    /// std::fs::write(&path, [9, 9, 9, 9, 1, 0, 2, 0])?; // a header of 4 bytes
    /// let tokens = Tokens::builder(&path).skip_header(4).window(2).open()?;
    /// assert_eq!(tokens.get(0)?.to_vec()?, [1, 2]);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn skip_header(mut self, bytes: usize) -> Self {
        self.header = Some(bytes);
        self
    }

    /// Makes samples of this many tokens each. A model that predicts the next token of a context of 1,024 needs 1,025.
    ///
    /// ```
    /// use candle_headroom::data::{Dataset, Tokens};
    ///
    /// let tokens = Tokens::from_vec((0..10).collect()).window(4).open()?;
    /// assert_eq!((tokens.len(), tokens.cost(0)), (2, 4)); // tokens 8 and 9 are in no window
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn window(mut self, tokens: usize) -> Self {
        self.window = tokens;
        self
    }

    /// Sets the number of tokens from the start of a window to the start of the next; by default that of a window, so that none
    /// overlap. Tokens at the end that do not fill a window are in no sample.
    ///
    /// ```
    /// use candle_headroom::data::{Dataset, Tokens};
    ///
    /// let tokens = Tokens::from_vec((0..10).collect()).window(4).stride(2).open()?;
    /// assert_eq!(tokens.len(), 4);
    /// assert_eq!(tokens.get(1)?.to_vec()?, [2, 3, 4, 5]); // it shares two tokens with the window before
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn stride(mut self, tokens: usize) -> Self {
        self.stride = Some(tokens);
        self
    }

    /// Makes samples of whole documents instead of windows. A document ends with the token `end`, which is part of it; the last
    /// one ends with the file. The file is read once on opening, and 8 bytes are stored for each document.
    ///
    /// ```
    /// use candle_headroom::data::{Loader, Pack, TokenWindow, Tokens, TokenType};
    /// use candle_headroom::error::BoxedError;
    ///
    /// let file = tempfile::NamedTempFile::new()?;
    /// std::fs::write(&file, [7, 8, 9, 0, 5, 0, 6, 6, 0])?;
    /// let documents = Tokens::builder(file.path()).dtype(TokenType::U8).documents(0).open()?;
    ///
    /// let pack = |documents: Vec<TokenWindow>| {
    ///     let tokens: Result<Vec<_>, _> = documents.iter().map(TokenWindow::to_vec).collect();
    ///     Pack::new(5).documents(tokens?)
    /// };
    /// let mut loader = Loader::builder(documents, pack).batch(3).build()?;
    /// let batch = loader.next().unwrap()?;
    /// assert_eq!(batch.tokens.to_vec2::<u32>()?, [[7, 8, 9, 0, 0], [6, 6, 0, 5, 0]]);
    /// # Ok::<(), BoxedError>(())
    /// ```
    pub fn documents(mut self, end: u32) -> Self {
        self.end = Some(end);
        self
    }

    /// Opens the file and finds the windows or documents.
    ///
    /// ```
    /// use candle_headroom::data::Tokens;
    ///
    /// let error = Tokens::from_vec(vec![1, 2, 3]).open().unwrap_err();
    /// assert!(error.is_data());
    /// assert_eq!(error.to_string(), "set `window` to at least 1 token, or `documents`");
    /// ```
    ///
    /// # Errors
    /// An [error of data](Error::is_data) if neither a window nor documents are asked for, or both, if the stride is 0, if the end token does not fit
    /// into a token's bytes, or if tokens in memory are given a type or a header. [`DataError::File`] if the file cannot be read, is
    /// empty, or ends within a token, or if llm.c's header is of another version or type, or states another number of tokens.
    /// If there are fewer tokens than a window has, either of the two: `DataError::File` for a file, an error of data for tokens in memory.
    pub fn open(mut self) -> Result<Tokens> {
        self.check(self.token.unwrap_or(TokenType::U32))?;
        let (content, tokens) = match &mut self.source {
            Source::Memory(tokens) => {
                let tokens = std::mem::take(tokens);
                let count = tokens.len();
                (Content::Memory(tokens), count)
            }
            Source::File(path) => {
                let file = open(path)?;
                let known = match self.header {
                    Some(_) => None,
                    None => read_header(&file, self.token)?,
                };
                let (token, header) = known.unwrap_or_else(|| {
                    let token = self.token.unwrap_or(TokenType::U16);
                    (token, self.header.unwrap_or(0))
                });
                self.check(token)?;
                let count = self.count(file.len(), token, header)?;
                let content = Content::File {
                    file,
                    token,
                    header,
                };
                (content, count)
            }
        };
        let cut = match self.end {
            Some(end) => Cut::Documents(document_ends(&content, tokens, end)?.into()),
            None => self.windows(tokens)?,
        };
        Ok(Tokens {
            content: Arc::new(content),
            cut: Arc::new(cut),
        })
    }

    fn check(&self, token: TokenType) -> Result<()> {
        let is_file = matches!(self.source, Source::File(_));
        let problem = match self.end {
            _ if !is_file && (self.token.is_some() || self.header.is_some()) => {
                "`dtype` and `skip_header` are settings of a file".to_owned()
            }
            None if self.window == 0 => {
                "set `window` to at least 1 token, or `documents`".to_owned()
            }
            None if self.stride == Some(0) => {
                "the stride must be at least 1 token, got 0".to_owned()
            }
            Some(_) if self.window > 0 || self.stride.is_some() => {
                "`documents` cannot be combined with `window` or `stride`".to_owned()
            }
            Some(end) if end > token.max() => {
                format!("the end token must be at most {}, got {end}", token.max())
            }
            _ => return Ok(()),
        };
        Err(match &self.source {
            Source::File(path) => invalid!(Data, "{}: {problem}", path.display()),
            Source::Memory(_) => invalid!(Data, "{problem}"),
        })
    }

    /// The error of what the tokens themselves are.
    fn unfit(&self, offset: Option<u64>, problem: String) -> Error {
        match &self.source {
            Source::File(path) => DataError::file(path, offset, problem).into(),
            Source::Memory(_) => invalid!(Data, "the list {problem}"),
        }
    }

    /// The number of tokens in a file of this length.
    fn count(&self, len: u64, token: TokenType, header: usize) -> Result<usize> {
        let too_long = |_| self.unfit(None, "is longer than the address space".to_owned());
        let len = usize::try_from(len).map_err(too_long)?;
        let size = token.size_in_bytes();
        let bytes = len.checked_sub(header).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or_else(|| {
            let problem = format!("no token follows the header of {header} bytes");
            self.unfit(Some(len as u64), problem)
        })?;
        if bytes % size != 0 {
            let problem = format!("the last token has {} of {size} bytes", bytes % size);
            return Err(self.unfit(Some((len - bytes % size) as u64), problem));
        }
        Ok(bytes / size)
    }

    fn windows(&self, tokens: usize) -> Result<Cut> {
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
                Err(self.unfit(None, problem))
            }
        }
    }
}

fn document_ends(content: &Content, tokens: usize, end: u32) -> Result<Vec<usize>> {
    /// Tokens that are read at once.
    const PIECE: usize = 1 << 17;
    if tokens == 0 {
        return Err(without_samples(&content.name()));
    }
    let (mut ends, mut bytes, mut piece) = (Vec::new(), Vec::new(), Vec::new());
    for start in (0..tokens).step_by(PIECE) {
        piece.clear();
        let range = start..tokens.min(start + PIECE);
        content.append(range, &mut bytes, &mut piece)?;
        let found = piece.iter().enumerate();
        let found = found.filter(|(_, token)| **token == end);
        ends.extend(found.map(|(at, _)| start + at + 1));
    }
    content.check()?;
    if ends.last() != Some(&tokens) {
        ends.push(tokens);
    }
    Ok(ends)
}
