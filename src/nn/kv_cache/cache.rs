use candle_core::{Result, Tensor, bail};

use super::overwrite::overwrite;
use super::stored::Stored;

/// The keys or the values of a [`KvCache`](super::KvCache), as [`candle_nn::kv_cache::Cache`].
///
/// What it keeps has no graph: gradients arrive through what [`KvCache::append`](super::KvCache::append) returns.
#[derive(Debug, Clone)]
pub struct Cache {
    stored: Stored,
    dim: usize,
    current_seq_len: usize,
    grow_by: usize,
    max_seq_len: usize,
}

impl Cache {
    /// Makes an empty cache along dimension `dim`, with a buffer of `max_seq_len` positions that grows by as many.
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Self {
            stored: Stored::default(),
            dim,
            current_seq_len: 0,
            grow_by: max_seq_len,
            max_seq_len,
        }
    }

    /// Returns the dimension of the positions.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Returns the number of positions.
    pub fn current_seq_len(&self) -> usize {
        self.current_seq_len
    }

    /// Returns the number of positions for which the buffer has room, or will have once it is allocated.
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// Returns the buffer of [`max_seq_len`](Self::max_seq_len) positions; after an append with a graph, which makes no buffer, the
    /// positions alone.
    pub fn all_data(&self) -> &Option<Tensor> {
        self.stored.tensor()
    }

    /// Returns the positions so far, without a graph; `None` before the first append.
    ///
    /// # Errors
    /// candle's.
    pub fn current_data(&self) -> Result<Option<Tensor>> {
        let data = self.stored.tensor().as_ref();
        data.map(|data| data.narrow(self.dim, 0, self.current_seq_len))
            .transpose()
    }

    /// Empties the cache and drops the buffer.
    pub fn reset(&mut self) {
        self.current_seq_len = 0;
        self.stored = Stored::default();
    }

    /// Appends positions. Their graph ends here: see [`Cache`].
    ///
    /// # Errors
    /// If `src` does not have the shape, apart from the number of positions, the type and the device of earlier ones; if
    /// `max_seq_len` is 0 and it has positions; if the buffer cannot be allocated.
    pub fn append(&mut self, src: &Tensor) -> Result<()> {
        self.extend(src, src.track_op()).map(drop)
    }

    /// Appends positions and returns all of them. With a graph, the new ones carry theirs, and no memory is written to.
    pub(super) fn extend(&mut self, src: &Tensor, in_graph: bool) -> Result<Tensor> {
        let (dim, seen) = (self.dim, self.current_seq_len);
        let all_seen = seen + src.dim(dim)?;
        let size = self.size_for(all_seen)?;
        let all;
        if in_graph {
            all = match self.current_data()? {
                Some(kept) => overwrite(&kept, src, dim, seen, size)?,
                None => src.clone(),
            };
            self.stored = Stored::shared(&all, dim, all_seen)?;
        } else {
            let buffer = self.stored.writable(src, dim, size)?;
            buffer.slice_set(&src.contiguous()?, dim, seen)?;
            all = buffer.narrow(dim, 0, all_seen)?;
            self.stored = Stored::buffer(buffer);
        }
        (self.current_seq_len, self.max_seq_len) = (all_seen, size);
        Ok(all)
    }

    /// Forgets all but the first positions.
    pub(super) fn truncate(&mut self, positions: usize) {
        self.current_seq_len = positions;
        if positions == 0 {
            self.stored = Stored::default();
        }
    }

    /// The size of the buffer for a number of positions.
    fn size_for(&self, positions: usize) -> Result<usize> {
        let missing = positions.saturating_sub(self.max_seq_len);
        match missing {
            0 => Ok(self.max_seq_len),
            _ if self.grow_by == 0 => {
                bail!("a cache with max_seq_len 0 has no room for {positions} positions")
            }
            _ => Ok(self.max_seq_len + missing.next_multiple_of(self.grow_by)),
        }
    }
}
