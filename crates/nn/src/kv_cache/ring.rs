use candle_core::{Device, Result, Tensor, bail};

use super::concat::{overwrite, without_graph};

/// The keys or the values of a [`KvCache`](super::KvCache), as [`candle_nn::kv_cache::Cache`].
///
/// What it keeps has no graph: gradients arrive through what [`KvCache::append`](super::Pair::append) returns.
pub type Cache = Ring<false>;

/// The keys or the values of the last positions in a ring, as [`candle_nn::kv_cache::RotatingCache`], with a backward pass for the
/// new positions.
///
/// An append to a cache that is not empty copies the ring once; the graph, if there is one, and the cache share the copy. The graph keeps
/// the new positions besides.
pub type RotatingCache = Ring<true>;

/// Keys or values: a [`RotatingCache`] if it rotates, else a [`Cache`].
#[derive(Debug, Clone)]
pub struct Ring<const ROTATES: bool> {
    dim: usize,
    /// Without a graph.
    stored: Option<Tensor>,
    offset: usize,
    current_seq_len: usize,
    grow_by: usize,
    max_seq_len: usize,
}

impl<const ROTATES: bool> Ring<ROTATES> {
    /// Makes an empty cache along dimension `dim`: a [`RotatingCache`] of the last `max_seq_len` positions, or a [`Cache`] for any number of
    /// positions, whose [`max_seq_len`](Self::max_seq_len) grows by as many where candle's buffer does.
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Self {
            dim,
            stored: None,
            offset: 0,
            current_seq_len: 0,
            grow_by: max_seq_len,
            max_seq_len,
        }
    }

    /// Returns the dimension of the positions.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Returns the number of positions seen, which may exceed those in a ring.
    pub fn current_seq_len(&self) -> usize {
        self.current_seq_len
    }

    /// Returns the number of positions in a ring, or for which candle's buffer would have room.
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// Returns the positions in the cache, as [`current_data`](Self::current_data): there is no buffer for more.
    pub fn all_data(&self) -> &Option<Tensor> {
        &self.stored
    }

    /// Returns the positions in the cache, those of a ring in its order, without a graph; `None` before the first append.
    ///
    /// # Errors
    /// candle's.
    pub fn current_data(&self) -> Result<Option<Tensor>> {
        Ok(self.stored.clone())
    }

    /// Empties the cache and drops the buffer. It stays as large as it has grown.
    pub fn reset(&mut self) {
        self.stored = None;
        (self.offset, self.current_seq_len) = (0, 0);
    }

    /// Puts new positions behind the others, and returns all, with the graph of the new ones. Neither what is returned nor what was
    /// returned before is written to later.
    fn extend(&mut self, new: &Tensor) -> Result<Tensor> {
        let (dim, seen) = (self.dim, self.current_seq_len);
        let count = new.dim(dim)?;
        let size = match ROTATES {
            true => self.max_seq_len,
            false => self.size_for(seen + count)?,
        };
        let replaces = ROTATES && count >= size;
        let at = match replaces {
            true => 0,
            false if ROTATES => self.offset,
            false => seen,
        };
        let held = (seen.min(size) + count).min(size);
        let all = match self.stored.as_ref().filter(|_| !replaces) {
            Some(kept) => overwrite(kept, new, dim, at, size)?,
            None => new.clone(),
        };
        let kept = without_graph(&all)?;
        let first = kept.dim(dim)? - held;
        self.stored = Some(kept.narrow(dim, first, held)?);
        self.offset = match replaces {
            true => 0,
            false => (at + count) % size.max(1),
        };
        (self.current_seq_len, self.max_seq_len) = (seen + count, size);
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
        self.extend(src).map(drop)
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
        self.extend(src)
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

/// Keys and values, each in a cache of its own: a [`KvCache`] or a [`RotatingKvCache`].
#[derive(Debug, Clone)]
pub struct Pair<const ROTATES: bool> {
    k: Ring<ROTATES>,
    v: Ring<ROTATES>,
}

/// Keys and values of the positions so far, as [`candle_nn::kv_cache::KvCache`], with a backward pass for the new positions.
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use candle_headroom_nn::kv_cache::KvCache;
///
/// let mut cache = KvCache::new(2, 16);
/// let earlier = Tensor::zeros((1, 2, 5, 8), DType::F32, &Device::Cpu)?;
/// cache.append(&earlier, &earlier)?;
///
/// let new = Var::ones((1, 2, 3, 8), DType::F32, &Device::Cpu)?;
/// let (k, v) = cache.append(&new, &new)?;
/// assert_eq!(k.dims(), [1, 2, 8, 8]);
/// let gradients = (k + v)?.sum_all()?.backward()?;
/// assert_eq!(gradients.get(&new).expect("a gradient").dims(), [1, 2, 3, 8]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// An append to a cache that is not empty copies the earlier and the new positions once; the graph, if there is one, and the cache share
/// the copy. The graph keeps the new keys and values besides.
pub type KvCache = Pair<false>;

/// Keys and values of the last positions in a ring, as [`candle_nn::kv_cache::RotatingKvCache`], with a backward pass for the new
/// positions: see [`RotatingCache`](super::RotatingCache).
pub type RotatingKvCache = Pair<true>;

impl<const ROTATES: bool> Pair<ROTATES> {
    /// Makes an empty cache along dimension `dim`: a [`RotatingKvCache`] of the last `max_seq_len` positions, or a [`KvCache`] for any number
    /// of positions, as [`Ring::new`] does.
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Self {
            k: Ring::new(dim, max_seq_len),
            v: Ring::new(dim, max_seq_len),
        }
    }

    /// Returns the keys' cache.
    pub fn k_cache(&self) -> &Ring<ROTATES> {
        &self.k
    }

    /// Returns the values' cache.
    pub fn v_cache(&self) -> &Ring<ROTATES> {
        &self.v
    }

    /// Returns the keys' cache.
    pub fn k_cache_mut(&mut self) -> &mut Ring<ROTATES> {
        &mut self.k
    }

    /// Returns the values' cache.
    pub fn v_cache_mut(&mut self) -> &mut Ring<ROTATES> {
        &mut self.v
    }

    /// Returns the keys that the cache holds, without a graph, those of a ring in its order; `None` before the first append.
    ///
    /// # Errors
    /// candle's.
    pub fn k(&self) -> Result<Option<Tensor>> {
        self.k.current_data()
    }

    /// Returns the values that the cache holds, as [`k`](Self::k).
    ///
    /// # Errors
    /// candle's.
    pub fn v(&self) -> Result<Option<Tensor>> {
        self.v.current_data()
    }

    /// Appends keys and values, and returns those of all positions; of a ring what [`RotatingCache::append`](super::RotatingCache::append) does. The new ones carry
    /// their graph.
    ///
    /// # Errors
    /// Those of [`Cache::append`](super::Cache::append), and of [`RotatingCache::append`](super::RotatingCache::append). Nothing is appended then.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let mut next = self.clone();
        let all = (next.k.extend(k)?, next.v.extend(v)?);
        *self = next;
        Ok(all)
    }

    /// Returns the number of positions seen, which may exceed those in a ring.
    pub fn current_seq_len(&self) -> usize {
        self.k.current_seq_len()
    }

    /// Empties the cache and drops the buffers.
    pub fn reset(&mut self) {
        self.k.reset();
        self.v.reset();
    }
}

impl RotatingKvCache {
    /// Returns the index in the ring to which the next position is written.
    pub fn offset(&self) -> usize {
        self.k.offset()
    }

    /// Returns the mask for an append of `seq_len` positions: [`RotatingCache::attn_mask`](super::RotatingCache::attn_mask).
    ///
    /// # Errors
    /// candle's.
    pub fn attn_mask(&self, seq_len: usize, device: &Device) -> Result<Option<Tensor>> {
        self.k.attn_mask(seq_len, device)
    }

    /// Returns the position of each entry that an append of `seq_len` positions will return.
    pub fn positions(&self, seq_len: usize) -> Vec<usize> {
        self.k.positions(seq_len)
    }
}
