use candle_core::{Device, Result, Tensor};

use super::ring::Ring;

/// Keys and values, each in a cache of its own: a [`KvCache`] or a [`RotatingKvCache`].
#[derive(Debug, Clone)]
pub struct Pair<const ROTATES: bool> {
    k: Ring<ROTATES>,
    v: Ring<ROTATES>,
}

/// Keys and values of the positions so far, in buffers that grow, as [`candle_nn::kv_cache::KvCache`], with a backward pass for the
/// new positions.
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
/// With a graph, an append to a cache that is not empty copies the earlier and the new positions once; graph and cache share the
/// copy. The graph keeps the new keys and values besides.
pub type KvCache = Pair<false>;

/// Keys and values of the last positions in a ring, as [`candle_nn::kv_cache::RotatingKvCache`], with a backward pass for the new
/// positions: see [`RotatingCache`](super::RotatingCache).
pub type RotatingKvCache = Pair<true>;

impl<const ROTATES: bool> Pair<ROTATES> {
    /// Makes an empty cache along dimension `dim`, with room for `max_seq_len` positions: a [`KvCache`] grows by as many, a
    /// [`RotatingKvCache`] keeps the last ones.
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
        // A graph may keep both, so neither is written to later.
        let in_graph = k.track_op() || v.track_op();
        let mut next = self.clone();
        let all = (next.k.extend(k, in_graph)?, next.v.extend(v, in_graph)?);
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
