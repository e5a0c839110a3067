use candle_core::{Device, Result, Tensor, bail};

use super::stored::Stored;

/// The keys or the values of a [`KvCache`](super::KvCache), in a buffer that grows, as [`candle_nn::kv_cache::Cache`].
///
/// What it keeps has no graph: gradients arrive through what [`KvCache::append`](super::Pair::append) returns.
pub type Cache = Ring<false>;

/// The keys or the values of the last positions in a ring, as [`candle_nn::kv_cache::RotatingCache`], with a backward pass for the
/// new positions.
///
/// With a graph, an append to a cache that is not empty copies the ring once; graph and cache share the copy. The graph keeps the
/// new positions besides. Without one, what is returned changes with the next append:
/// [what this means for other gradients](super#constant-keys-and-values).
pub type RotatingCache = Ring<true>;

/// Keys or values: a [`RotatingCache`] if it rotates, else a [`Cache`].
#[derive(Debug, Clone)]
pub struct Ring<const ROTATES: bool> {
    stored: Stored,
    offset: usize,
    current_seq_len: usize,
    grow_by: usize,
    max_seq_len: usize,
}

impl<const ROTATES: bool> Ring<ROTATES> {
    /// Makes an empty cache along dimension `dim`: a [`RotatingCache`] of the last `max_seq_len` positions, or a [`Cache`] with a
    /// buffer of `max_seq_len` positions that grows by as many.
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Self {
            stored: Stored::new(dim),
            offset: 0,
            current_seq_len: 0,
            grow_by: max_seq_len,
            max_seq_len,
        }
    }

    /// Returns the dimension of the positions.
    pub fn dim(&self) -> usize {
        self.stored.dim
    }

    /// Returns the number of positions seen, which may exceed those in a ring.
    pub fn current_seq_len(&self) -> usize {
        self.current_seq_len
    }

    /// Returns the number of positions for which the buffer has room, or will have once it is allocated.
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// Returns the buffer of [`max_seq_len`](Self::max_seq_len) positions. An append with a graph makes no buffer: it leaves the
    /// positions alone.
    pub fn all_data(&self) -> &Option<Tensor> {
        self.stored.tensor()
    }

    /// Returns the positions in the cache, those of a ring in its order, without a graph; `None` before the first append.
    ///
    /// # Errors
    /// candle's.
    pub fn current_data(&self) -> Result<Option<Tensor>> {
        self.stored
            .first(self.current_seq_len.min(self.max_seq_len))
    }

    /// Empties the cache and drops the buffer. It stays as large as it has grown.
    pub fn reset(&mut self) {
        self.stored = Stored::new(self.stored.dim);
        (self.offset, self.current_seq_len) = (0, 0);
    }

    /// Appends positions and returns what the cache holds then. In a graph they carry it, and no memory is written to.
    pub(super) fn extend(&mut self, new: &Tensor, in_graph: bool) -> Result<Tensor> {
        let (dim, seen) = (self.stored.dim, self.current_seq_len);
        let count = new.dim(dim)?;
        let size = match ROTATES {
            true => self.max_seq_len,
            false => self.size_for(seen + count)?,
        };
        let mut offset = 0;
        let all = if !ROTATES || count < size {
            let at = if ROTATES { self.offset } else { seen };
            offset = (at + count) % size.max(1);
            let held = seen.min(size);
            self.stored.extend(new, in_graph, [at, held, size])?
        } else if in_graph {
            let mut stored = Stored::new(dim);
            stored.extend(new, true, [0, 0, size])?;
            self.stored = stored;
            new.clone()
        } else {
            let last = new.narrow(dim, count - size, size)?;
            self.stored.extend(&last, false, [0, size, size])?;
            new.clone()
        };
        (self.offset, self.current_seq_len) = (offset, seen + count);
        self.max_seq_len = size;
        Ok(all)
    }

    /// The size of a buffer that grows, for a number of positions.
    fn size_for(&self, positions: usize) -> Result<usize> {
        let missing = positions.saturating_sub(self.max_seq_len);
        if missing > 0 && self.grow_by == 0 {
            bail!("a cache with max_seq_len 0 has no room for {positions} positions")
        }
        Ok(self.max_seq_len + missing.next_multiple_of(self.grow_by.max(1)))
    }
}

impl Cache {
    /// Appends positions. Their graph ends here: see [`Cache`].
    ///
    /// # Errors
    /// If `src` does not have the shape, apart from the number of positions, the type and the device of earlier ones; if
    /// `max_seq_len` is 0 and it has positions; if the buffer cannot be allocated.
    pub fn append(&mut self, src: &Tensor) -> Result<()> {
        self.extend(src, src.track_op()).map(drop)
    }
}

impl RotatingCache {
    /// Returns the index in the ring to which the next position is written.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Appends positions. Returns those in the ring, in its order; if there are at least as many new ones as fit into the ring,
    /// these alone, all of them. They carry their graph.
    ///
    /// # Errors
    /// If `src` does not have the shape, apart from the number of positions, the type and the device of earlier ones; if the ring
    /// cannot be allocated.
    pub fn append(&mut self, src: &Tensor) -> Result<Tensor> {
        self.extend(src, src.track_op())
    }

    /// Returns the position of each entry that an append of `seq_len` positions will return.
    pub fn positions(&self, seq_len: usize) -> Vec<usize> {
        let (size, seen) = (self.max_seq_len, self.current_seq_len + seq_len);
        if seq_len > size {
            return (self.current_seq_len..seen).collect();
        }
        let next = (self.offset + seq_len).checked_rem(size).unwrap_or(0);
        // Entries from the next index on are one turn older.
        let age = |index| next + if index < next { 0 } else { size };
        (0..seen.min(size))
            .map(|index| seen + index - age(index))
            .collect()
    }

    /// Returns the mask for an append of `seq_len` positions, of shape (`seq_len`, entries returned): 1 where an entry lies after a
    /// new position or more than `max_seq_len` before it, else 0. `None` for one position, which sees all.
    ///
    /// # Errors
    /// candle's.
    pub fn attn_mask(&self, seq_len: usize, device: &Device) -> Result<Option<Tensor>> {
        if seq_len == 1 {
            return Ok(None);
        }
        let window = self.max_seq_len;
        let new = self.current_seq_len..self.current_seq_len + seq_len;
        let entries = match seq_len < window {
            true => self.positions(seq_len),
            false => new.clone().collect(),
        };
        let masked = |new: usize, entry: usize| entry > new || entry + window < new;
        let mask = new.flat_map(|new| {
            entries
                .iter()
                .map(move |&entry| u8::from(masked(new, entry)))
        });
        let mask: Vec<u8> = mask.collect();
        Tensor::from_vec(mask, (seq_len, entries.len()), device).map(Some)
    }
}
