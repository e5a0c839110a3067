use std::collections::BTreeSet;
use std::ops::Range;

use candle_core::{Device, Tensor};

use super::{buffer, refused};
use crate::batch::{Batch, Extent};
use crate::data::Tensors;
use crate::error::{BoxedError, Result};

/// Packs documents of tokens into rows of one length, for [`Loader::builder`](crate::data::Loader::builder), so that few places are
/// padded and no token attends to another document.
///
/// Documents go into rows by best fit, the longest first (best fit decreasing, Johnson 1974), which needs at most 11/9 of the least possible number
/// of rows, and 4 more. The same documents always give the same rows. Attention within the documents is
/// [`flash_attn_varlen_unfused`](crate::nn::attention::flash_attn_varlen_unfused) with [`Packed::seqlens`]:
///
/// ```
/// use candle_core::{Device, Result, Tensor};
/// use candle_headroom::data::{Items, Loader, Pack};
/// use candle_headroom::nn::attention::flash_attn_varlen_unfused;
///
/// // Causal attention with one head of width 4, on tokens one after the other: [tokens] to [tokens, 1, 4].
/// let embeddings = Tensor::randn(0f64, 1., (10, 4), &Device::Cpu)?;
/// let attend = |tokens: &Tensor, seqlens: &Tensor| -> Result<Tensor> {
///     let x = embeddings.index_select(tokens, 0)?.unsqueeze(1)?;
///     let longest = tokens.elem_count();
///     flash_attn_varlen_unfused(&x, &x, &x, None, seqlens, seqlens, longest, longest, 0.5, true, None, None)
/// };
///
/// let documents = vec![vec![1u32, 2, 3], vec![4, 5, 6, 7, 8], vec![9, 1]];
/// let pack = Pack::new(6);
/// let mut loader = Loader::builder(Items(documents.clone()), move |batch| pack.documents(batch)).batch(3).build()?;
/// let batch = loader.next().unwrap()?;
/// assert_eq!(batch.tokens.to_vec2::<u32>()?, [[4, 5, 6, 7, 8, 0], [1, 2, 3, 9, 1, 0]]);
/// assert_eq!(batch.positions.to_vec2::<u32>()?, [[0, 1, 2, 3, 4, 0], [0, 1, 2, 0, 1, 0]]);
/// assert_eq!(batch.targets.to_vec2::<i64>()?[1], [2, 3, -100, 1, -100, -100]);
/// assert_eq!(batch.seqlens()?.to_vec1::<u32>()?, [5, 1, 3, 2, 1]); // padding is a sequence of its own
///
/// let packed = attend(&batch.tokens.flatten_all()?, &batch.seqlens()?)?;
/// for piece in batch.pieces() {
///     let document = Tensor::new(documents[piece.document].as_slice(), &Device::Cpu)?;
///     let alone = attend(&document, &Tensor::new(&[piece.len as u32], &Device::Cpu)?)?;
///     let place = piece.row * 6 + piece.start;
///     let difference = (packed.narrow(0, place, piece.len)? - alone)?.abs()?.max_all()?;
///     assert!(difference.to_scalar::<f64>()? < 1e-6);
/// }
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use = "call `documents` on it"]
pub struct Pack {
    length: usize,
    padding: u32,
    ignored: i64,
    cuts: bool,
}

impl Pack {
    /// Packs into rows of this many tokens.
    ///
    /// ```
    /// use candle_headroom::data::Pack;
    ///
    /// let packed = Pack::new(4).documents(vec![vec![7u32, 8, 9]])?;
    /// assert_eq!(packed.tokens.to_vec2::<u32>()?, [[7, 8, 9, 0]]);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn new(length: usize) -> Self {
        Self {
            length,
            padding: 0,
            ignored: -100,
            cuts: false,
        }
    }

    /// Fills the ends of rows with this token; 0 by default.
    ///
    /// ```
    /// use candle_headroom::data::Pack;
    ///
    /// let packed = Pack::new(4).padding(1).documents(vec![vec![7u32, 8]])?;
    /// assert_eq!(packed.tokens.to_vec2::<u32>()?, [[7, 8, 1, 1]]);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn padding(mut self, token: u32) -> Self {
        self.padding = token;
        self
    }

    /// Sets the target of tokens that have none; -100 by default, as in PyTorch. Pass it to
    /// [`linear_cross_entropy`](crate::nn::loss::linear_cross_entropy) as its `ignore_index`.
    ///
    /// ```
    /// use candle_headroom::data::Pack;
    ///
    /// let packed = Pack::new(4).ignore_index(-1).documents(vec![vec![7u32, 8, 9]])?;
    /// assert_eq!(packed.targets.to_vec2::<i64>()?, [[8, 9, -1, -1]]);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn ignore_index(mut self, target: i64) -> Self {
        self.ignored = target;
        self
    }

    /// Cuts a document that is longer than a row into pieces, which do not attend to each other. The target of a piece's last token is the first
    /// token of the next piece. By default such a document is an error.
    ///
    /// ```
    /// use candle_headroom::data::Pack;
    ///
    /// let packed = Pack::new(3).cut().documents(vec![vec![1u32, 2, 3, 4, 5]])?;
    /// assert_eq!(packed.tokens.to_vec2::<u32>()?, [[1, 2, 3], [4, 5, 0]]);
    /// assert_eq!(packed.targets.to_vec2::<i64>()?, [[2, 3, 4], [5, -100, -100]]);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn cut(mut self) -> Self {
        self.cuts = true;
        self
    }

    /// Makes a batch of documents, on the CPU: `[rows, length]`, with as many rows as best fit needs. Empty documents are left out. For windows of a
    /// token file, collect their [`to_vec`](crate::data::TokenWindow::to_vec).
    ///
    /// ```
    /// use candle_headroom::data::Pack;
    ///
    /// let documents = vec![vec![4u32], vec![7, 8, 9], vec![5, 6]];
    /// let packed = Pack::new(5).documents(documents)?;
    /// assert_eq!(packed.tokens.to_vec2::<u32>()?, [[7, 8, 9, 5, 6], [4, 0, 0, 0, 0]]);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// An [error of data](crate::Error::is_data) if there are no tokens, if a document is longer than a row, with its
    /// place in the batch, if the length is 0 or does not fit u32, or if memory does not suffice.
    pub fn documents<S: AsRef<[u32]>>(&self, documents: Vec<S>) -> Result<Packed, BoxedError> {
        let documents: Vec<_> = documents.iter().map(S::as_ref).collect();
        let pieces = self.pieces(&documents)?;
        let sizes: Vec<_> = pieces.iter().map(|piece| piece.len).collect();
        let rows = best_fit(&sizes, self.length);
        let mut tokens = buffer(rows.len(), self.length)?;
        let mut positions = buffer(rows.len(), self.length)?;
        let mut targets = buffer(rows.len(), self.length)?;
        let mut placed = Vec::new();
        for (row, items) in rows.iter().enumerate() {
            for piece in items.iter().filter_map(|item| pieces.get(*item)) {
                let document = documents.get(piece.document).copied().unwrap_or_default();
                let from = document.get(piece.offset..).unwrap_or_default();
                let start = tokens.len() - row * self.length;
                tokens.extend(from.iter().take(piece.len));
                positions.extend(0..piece.len as u32);
                let next = from.iter().skip(1).map(|token| i64::from(*token));
                targets.extend(next.chain([self.ignored]).take(piece.len));
                placed.push(Piece {
                    row,
                    start,
                    ..*piece
                });
            }
            let missing = (row + 1) * self.length - tokens.len();
            tokens.extend(std::iter::repeat_n(self.padding, missing));
            positions.extend(0..missing as u32);
            targets.extend(std::iter::repeat_n(self.ignored, missing));
        }
        let shape = (rows.len(), self.length);
        Ok(Packed {
            tokens: Tensor::from_vec(tokens, shape, &Device::Cpu)?,
            positions: Tensor::from_vec(positions, shape, &Device::Cpu)?,
            targets: Tensor::from_vec(targets, shape, &Device::Cpu)?,
            pieces: placed,
        })
    }

    /// The pieces of the documents, not yet in rows.
    fn pieces(&self, documents: &[&[u32]]) -> Result<Vec<Piece>, BoxedError> {
        let length = self.length;
        if length == 0 || u32::try_from(length).is_err() {
            let most = u32::MAX;
            return Err(refused(format!(
                "rows must have from 1 to {most} tokens, got {length}"
            )));
        }
        let mut pieces = Vec::new();
        for (document, tokens) in documents.iter().enumerate() {
            let tokens = tokens.len();
            if tokens > length && !self.cuts {
                return Err(refused(format!(
                    "the document at place {document} has {tokens} tokens, a row has {length}: use longer rows, or `Pack::cut`"
                )));
            }
            pieces.extend((0..tokens).step_by(length).map(|offset| Piece {
                document,
                offset,
                len: length.min(tokens - offset),
                row: 0,
                start: 0,
            }));
        }
        match pieces.is_empty() {
            true => Err(refused(format!(
                "{} documents without tokens cannot be packed",
                documents.len()
            ))),
            false => Ok(pieces),
        }
    }
}

/// Puts items into bins of a capacity that none exceeds: the largest first, each into the fullest bin that has room for it (best fit
/// decreasing; Johnson 1974). Returns each bin's items; equal items keep their order.
///
/// At most 11/9 of the least possible number of bins are used, and 4 more.
fn best_fit(sizes: &[usize], capacity: usize) -> Vec<Vec<usize>> {
    let mut items: Vec<_> = sizes.iter().copied().enumerate().collect();
    items.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    let mut bins: Vec<Vec<usize>> = Vec::new();
    // Room and number of each bin.
    let mut rooms = BTreeSet::new();
    for (item, size) in items {
        let fullest = rooms.range((size, 0)..).next().copied();
        let (room, number) = fullest.unwrap_or((capacity, bins.len()));
        rooms.remove(&(room, number));
        rooms.insert((room.saturating_sub(size), number));
        match bins.get_mut(number) {
            Some(bin) => bin.push(item),
            None => bins.push(vec![item]),
        }
    }
    bins
}

/// Documents packed into rows, from [`Pack`]. It is a [`Batch`] of rows.
///
/// ```
/// use candle_headroom::data::Pack;
///
/// let packed = Pack::new(4).documents(vec![vec![7u32, 8, 9], vec![5]])?;
/// assert_eq!(packed.tokens.to_vec2::<u32>()?, [[7, 8, 9, 5]]);
/// assert_eq!(packed.positions.to_vec2::<u32>()?, [[0, 1, 2, 0]]);
/// assert_eq!(packed.targets.to_vec2::<i64>()?, [[8, 9, -100, -100]]);
/// # Ok::<(), candle_headroom::error::BoxedError>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Packed {
    /// u32, `[rows, length]`.
    pub tokens: Tensor,
    /// Each token's place in its document, or in its piece of it: u32, `[rows, length]`.
    pub positions: Tensor,
    /// The next token of the document, or what is ignored: i64, `[rows, length]`.
    pub targets: Tensor,
    /// By row and place in it.
    pieces: Vec<Piece>,
}

/// Where a document is, or a piece of one that was cut.
///
/// ```
/// use candle_headroom::data::Pack;
///
/// let packed = Pack::new(4).cut().documents(vec![vec![1u32, 2, 3, 4, 5]])?;
/// let rest = packed.pieces()[1]; // the fifth token of the document
/// assert_eq!((rest.document, rest.offset, rest.len), (0, 4, 1));
/// assert_eq!((rest.row, rest.start), (1, 0));
/// # Ok::<(), candle_headroom::error::BoxedError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Piece {
    /// The document's place among those that were packed.
    pub document: usize,
    /// The document's tokens before this piece.
    pub offset: usize,
    /// The number of tokens.
    pub len: usize,
    /// The row that holds it.
    pub row: usize,
    /// The tokens before it in the row.
    pub start: usize,
}

impl Packed {
    /// Returns where the documents are, row by row.
    ///
    /// ```
    /// use candle_headroom::data::Pack;
    ///
    /// let packed = Pack::new(5).documents(vec![vec![5u32, 6], vec![7, 8, 9]])?;
    /// let pieces = packed.pieces();
    /// assert_eq!((pieces[0].document, pieces[0].start), (1, 0)); // the longest comes first
    /// assert_eq!((pieces[1].document, pieces[1].start), (0, 3));
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Returns the lengths of the sequences, row after row, for
    /// [`flash_attn_varlen_unfused`](crate::nn::attention::flash_attn_varlen_unfused): u32, `[sequences]`. The padding of a row is a
    /// sequence too, so they add up to all places of all rows.
    ///
    /// The tensor is on the CPU, where that function reads it: on a GPU it would wait for the device.
    ///
    /// ```
    /// use candle_headroom::data::Pack;
    ///
    /// let packed = Pack::new(6).documents(vec![vec![7u32, 8, 9], vec![5, 6]])?;
    /// assert_eq!(packed.seqlens()?.to_vec1::<u32>()?, [3, 2, 1]); // and one place of padding
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// Those of candle.
    pub fn seqlens(&self) -> Result<Tensor> {
        let length = self.tokens.dim(1)?;
        let mut lengths = Vec::new();
        for row in self.pieces.chunk_by(|a, b| a.row == b.row) {
            lengths.extend(row.iter().map(|piece| piece.len as u32));
            let end = row.last().map_or(0, |last| last.start + last.len);
            if end < length {
                lengths.push((length - end) as u32);
            }
        }
        Ok(Tensor::new(lengths, &Device::Cpu)?)
    }
}

/// Tokens, positions and targets.
impl Tensors for Packed {
    fn tensors(&self) -> Vec<&Tensor> {
        vec![&self.tokens, &self.positions, &self.targets]
    }

    fn tensors_mut(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.tokens, &mut self.positions, &mut self.targets]
    }

    fn remove_samples(&mut self) -> candle_core::Result<()> {
        self.pieces.clear();
        self.tensors_mut()
            .into_iter()
            .try_for_each(Tensor::remove_samples)
    }
}

impl Batch for Packed {
    type Slice<'a> = Packed;

    fn extent(&self) -> Result<Extent> {
        self.tokens.extent()
    }

    fn slice(&self, range: Range<usize>) -> Result<Packed> {
        let tokens = self.tokens.slice(range.clone())?;
        let pieces = self.pieces.iter();
        let of_range = pieces.filter(|piece| range.contains(&piece.row));
        let pieces = of_range.map(|piece| Piece {
            row: piece.row - range.start,
            ..*piece
        });
        Ok(Packed {
            tokens,
            positions: self.positions.slice(range.clone())?,
            targets: self.targets.slice(range.clone())?,
            pieces: pieces.collect(),
        })
    }

    fn device(&self) -> Option<Device> {
        Some(self.tokens.device().clone())
    }
}
