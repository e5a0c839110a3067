use candle_core::{Device, Result, Tensor};

use super::RotatingCache;

/// Keys and values of the last positions in a ring, as [`candle_nn::kv_cache::RotatingKvCache`], with a backward pass for the new
/// positions: see [`RotatingCache`].
#[derive(Debug, Clone)]
pub struct RotatingKvCache {
    k: RotatingCache,
    v: RotatingCache,
}

impl RotatingKvCache {
    /// Makes an empty cache of the last `max_seq_len` positions along dimension `dim`.
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Self {
            k: RotatingCache::new(dim, max_seq_len),
            v: RotatingCache::new(dim, max_seq_len),
        }
    }

    /// Returns the keys' cache.
    pub fn k_cache(&self) -> &RotatingCache {
        &self.k
    }

    /// Returns the values' cache.
    pub fn v_cache(&self) -> &RotatingCache {
        &self.v
    }

    /// Returns the keys' cache.
    pub fn k_cache_mut(&mut self) -> &mut RotatingCache {
        &mut self.k
    }

    /// Returns the values' cache.
    pub fn v_cache_mut(&mut self) -> &mut RotatingCache {
        &mut self.v
    }

    /// Returns the keys in the ring, in its order, without a graph; `None` before the first append.
    ///
    /// # Errors
    /// candle's.
    pub fn k(&self) -> Result<Option<Tensor>> {
        self.k.current_data()
    }

    /// Returns the values in the ring, in its order, without a graph; `None` before the first append.
    ///
    /// # Errors
    /// candle's.
    pub fn v(&self) -> Result<Option<Tensor>> {
        self.v.current_data()
    }

    /// Appends keys and values, and returns what [`RotatingCache::append`] does.
    ///
    /// # Errors
    /// Those of [`RotatingCache::append`].
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        // A graph may keep both, so neither is written to later.
        let in_graph = k.track_op() || v.track_op();
        let mut next = self.clone();
        let all = (next.k.extend(k, in_graph)?, next.v.extend(v, in_graph)?);
        *self = next;
        Ok(all)
    }

    /// Returns the index in the ring to which the next position is written.
    pub fn offset(&self) -> usize {
        self.k.offset()
    }

    /// Returns the number of positions seen, which may exceed those in the ring.
    pub fn current_seq_len(&self) -> usize {
        self.k.current_seq_len()
    }

    /// Returns the mask for an append of `seq_len` positions: [`RotatingCache::attn_mask`].
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

    /// Empties the cache and drops the rings.
    pub fn reset(&mut self) {
        self.k.reset();
        self.v.reset();
    }
}
