use std::ops::Range;

use candle_core::{Device, Tensor};

use crate::batch::{Batch, Extent};
use crate::data::Tensors;
use crate::error::Result;

/// Documents packed into rows, from [`Pack`](super::Pack). It is a [`Batch`] of rows.
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
    pub(super) fn new(
        tokens: Tensor,
        positions: Tensor,
        targets: Tensor,
        pieces: Vec<Piece>,
    ) -> Self {
        Self {
            tokens,
            positions,
            targets,
            pieces,
        }
    }

    /// Returns where the documents are, row by row.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Returns the lengths of the sequences, row after row, for
    /// [`flash_attn_varlen_unfused`](crate::nn::attention::flash_attn_varlen_unfused): u32, `[sequences]`. The padding of a row is a
    /// sequence too, so they add up to all places of all rows.
    ///
    /// The tensor is on the CPU, where that function reads it: on a GPU it would wait for the device.
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
        let of_range = self
            .pieces
            .iter()
            .filter(|piece| range.contains(&piece.row));
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
