use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytesize::ByteSize;

use super::{Content, Cut, Part, TokenType, Tokens, read_header};
use crate::data::dataset::{Concat, without_samples};
use crate::data::open;
use crate::data::starts::{INDEX, Starts};
use crate::error::{DataError, Result, invalid};

/// Settings of [`Tokens`], from [`Tokens::builder`].
///
/// ```
/// # use candle_headroom::data::{Dataset, TokenType, Tokens};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("train.bin");
/// std::fs::write(&path, [1, 0, 2, 0, 3, 0, 4, 0])?; // four tokens of two bytes
/// let tokens = Tokens::builder([&path]).dtype(TokenType::U16).window(3).stride(1).open()?;
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
    index: ByteSize,
}

#[derive(Debug, Clone)]
enum Source {
    Files(Vec<PathBuf>),
    Memory(Vec<u32>),
}

impl Tokens {
    /// Describes files of tokens, whose samples follow each other in this order. Set [`window`](TokensBuilder::window) or
    /// [`documents`](TokensBuilder::documents).
    ///
    /// ```
    /// # use candle_headroom::data::{Dataset, Tokens};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("train.bin");
    /// std::fs::write(&path, [1, 0, 2, 0, 3, 0, 4, 0])?; // of two bytes by default
    /// let tokens = Tokens::builder([&path]).window(2).open()?;
    /// assert_eq!((tokens.len(), tokens.get(1)?.to_vec()?), (2, vec![3, 4]));
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// One path stands in brackets as well, because a path by itself is a list of its folders:
    ///
    /// ```compile_fail
    /// candle_headroom::data::Tokens::builder(std::path::Path::new("train.bin"));
    /// ```
    pub fn builder<P: AsRef<Path>>(paths: impl AsRef<[P]>) -> TokensBuilder {
        let paths = paths.as_ref().iter().map(|path| path.as_ref().to_owned());
        TokensBuilder::new(Source::Files(paths.collect()))
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
            index: INDEX,
        }
    }

    /// Sets how the file stores a token; by default as llm.c's header says, and [`TokenType::U16`] without one.
    ///
    /// ```
    /// # use candle_headroom::data::{Dataset, TokenType, Tokens};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("train.txt");
    /// std::fs::write(&path, "abcdef")?;
    /// let bytes = Tokens::builder([&path]).dtype(TokenType::U8).window(3).open()?;
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
    /// let tokens = Tokens::builder([&path]).skip_header(4).window(2).open()?;
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
    /// assert_eq!((tokens.len(), tokens.cost(0)?), (2, 4)); // tokens 8 and 9 are in no window
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
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
    /// one ends with the file. A file is read once on opening, to [index](Self::index_bytes) its documents.
    ///
    /// ```
    /// use candle_headroom::data::{Loader, Pack, TokenWindow, Tokens, TokenType};
    /// use candle_headroom::error::BoxedError;
    ///
    /// let file = tempfile::NamedTempFile::new()?;
    /// std::fs::write(&file, [7, 8, 9, 0, 5, 0, 6, 6, 0])?;
    /// let documents = Tokens::builder([file.path()]).dtype(TokenType::U8).documents(0).open()?;
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

    /// Sets how many bytes the index of [documents](Self::documents) may take, all files together; 32 MiB by default. The index takes 8 bytes for each
    /// document, but beyond this limit only each second, fourth and so on is stored. The others are found again by reading from there, and up to
    /// 4 MiB a file of what was found last are kept, so that documents in the order of the file, or
    /// [shuffled by blocks](crate::data::LoaderBuilder::blocks), are read twice at most. Windows need no index.
    ///
    /// ```
    /// use candle_headroom::ByteSize;
    /// use candle_headroom::data::{Dataset, Tokens};
    ///
    /// let tokens = vec![7, 0, 8, 8, 0, 9, 0, 6, 6, 0];
    /// let documents = Tokens::from_vec(tokens).documents(0).index_bytes(ByteSize(16)).open()?; // each second document
    /// assert_eq!((documents.len(), documents.get(3)?.to_vec()?), (4, vec![6, 6, 0]));
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn index_bytes(mut self, most: ByteSize) -> Self {
        self.index = most;
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
    /// An [error of data](crate::Error::is_data) if there is no file, if neither a window nor documents are asked for, or both, if the stride is 0, if the end token does not fit
    /// into a token's bytes, or if tokens in memory are given a type or a header. [`DataError::File`] if the file cannot be read, is
    /// empty, or ends within a token, or if llm.c's header is of another version or type, or states another number of tokens.
    /// If there are fewer tokens than a window has, either of the two: `DataError::File` for a file, an error of data for tokens in memory.
    pub fn open(mut self) -> Result<Tokens> {
        let parts = match std::mem::replace(&mut self.source, Source::Files(Vec::new())) {
            Source::Memory(tokens) => {
                if self.token.is_some() || self.header.is_some() {
                    return Err(invalid!(
                        Data,
                        "`dtype` and `skip_header` are settings of a file"
                    ));
                }
                self.check(TokenType::U32, None)?;
                let count = tokens.len();
                vec![self.part(Content::Memory(tokens), count, self.index.as_u64())?]
            }
            Source::Files(paths) if paths.is_empty() => {
                return Err(invalid!(Data, "tokens need at least one file"));
            }
            Source::Files(paths) => {
                let index = self.index.as_u64() / paths.len() as u64;
                let parts = paths.iter().map(|path| self.file(path, index));
                parts.collect::<Result<_>>()?
            }
        };
        Ok(Tokens {
            files: Arc::new(Concat::new(parts)),
        })
    }

    fn file(&self, path: &Path, index: u64) -> Result<Part> {
        self.check(self.token.unwrap_or(TokenType::U32), Some(path))?;
        let file = open(path)?;
        let known = match self.header {
            Some(_) => None,
            None => read_header(&file, self.token)?,
        };
        let (token, header) = known.unwrap_or_else(|| {
            let token = self.token.unwrap_or(TokenType::U16);
            (token, self.header.unwrap_or(0))
        });
        self.check(token, Some(path))?;
        let count = count(path, file.len(), token, header)?;
        let content = Content::File {
            file,
            token,
            header,
        };
        self.part(content, count, index)
    }

    fn check(&self, token: TokenType, path: Option<&Path>) -> Result<()> {
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
            Some(end) if end > token.max() => {
                format!("the end token must be at most {}, got {end}", token.max())
            }
            _ => return Ok(()),
        };
        Err(match path {
            Some(path) => invalid!(Data, "{}: {problem}", path.display()),
            None => invalid!(Data, "{problem}"),
        })
    }

    /// Cuts tokens, with an index of at most so many bytes.
    fn part(&self, content: Content, tokens: usize, index: u64) -> Result<Part> {
        let cut = match self.end {
            Some(_) if tokens == 0 => return Err(without_samples(&content.name())),
            Some(end) => {
                let mut starts = Starts::new(index);
                content.documents(0..tokens, end, |start| starts.push(start))?;
                starts.finish();
                Cut::Documents {
                    starts,
                    end,
                    tokens,
                }
            }
            None => self.windows(&content, tokens)?,
        };
        let content = Arc::new(content);
        Ok(Part { content, cut })
    }

    fn windows(&self, content: &Content, tokens: usize) -> Result<Cut> {
        let window = self.window;
        let stride = self.stride.unwrap_or(window);
        let Some(rest) = tokens.checked_sub(window) else {
            let problem = format!("has {tokens} tokens, less than a window of {window}");
            return Err(match content.path() {
                Some(path) => DataError::file(path, None, problem).into(),
                None => invalid!(Data, "the list {problem}"),
            });
        };
        let count = rest / stride + 1;
        Ok(Cut::Windows {
            window,
            stride,
            count,
        })
    }
}

/// The number of tokens in a file of this length.
fn count(path: &Path, len: u64, token: TokenType, header: usize) -> Result<usize, DataError> {
    let too_long = |_| DataError::file(path, None, "is longer than the address space");
    let len = usize::try_from(len).map_err(too_long)?;
    let size = token.size_in_bytes();
    let bytes = len.checked_sub(header).filter(|bytes| *bytes > 0);
    let bytes = bytes.ok_or_else(|| {
        let problem = format!("no token follows the header of {header} bytes");
        DataError::file(path, Some(len as u64), problem)
    })?;
    if bytes % size != 0 {
        let problem = format!("the last token has {} of {size} bytes", bytes % size);
        return Err(DataError::file(path, (len - bytes % size) as u64, problem));
    }
    Ok(bytes / size)
}
