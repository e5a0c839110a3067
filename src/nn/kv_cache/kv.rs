use candle_core::{Result, Tensor};

use super::Cache;

/// Keys and values of the positions so far, in buffers that grow, as [`candle_nn::kv_cache::KvCache`], with a backward pass for the
/// new positions.
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use candle_headroom::nn::kv_cache::KvCache;
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
#[derive(Debug, Clone)]
pub struct KvCache {
    k: Cache,
    v: Cache,
}

impl KvCache {
    /// Makes an empty cache along dimension `dim`, with buffers of `max_seq_len` positions that grow by as many.
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Self {
            k: Cache::new(dim, max_seq_len),
            v: Cache::new(dim, max_seq_len),
        }
    }

    /// Returns the keys' cache.
    pub fn k_cache(&self) -> &Cache {
        &self.k
    }

    /// Returns the values' cache.
    pub fn v_cache(&self) -> &Cache {
        &self.v
    }

    /// Returns the keys' cache.
    pub fn k_cache_mut(&mut self) -> &mut Cache {
        &mut self.k
    }

    /// Returns the values' cache.
    pub fn v_cache_mut(&mut self) -> &mut Cache {
        &mut self.v
    }

    /// Returns the keys so far, without a graph; `None` before the first append.
    ///
    /// # Errors
    /// candle's.
    pub fn k(&self) -> Result<Option<Tensor>> {
        self.k.current_data()
    }

    /// Returns the values so far, without a graph; `None` before the first append.
    ///
    /// # Errors
    /// candle's.
    pub fn v(&self) -> Result<Option<Tensor>> {
        self.v.current_data()
    }

    /// Appends keys and values, and returns those of all positions. The new ones carry their graph.
    ///
    /// # Errors
    /// Those of [`Cache::append`].
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        // A graph may keep both, so neither is written to later.
        let in_graph = k.track_op() || v.track_op();
        let before = self.k.current_seq_len();
        let all_k = self.k.extend(k, in_graph)?;
        let all_v = self.v.extend(v, in_graph);
        let all_v = all_v.inspect_err(|_| self.k.truncate(before))?;
        Ok((all_k, all_v))
    }

    /// Returns the number of positions.
    pub fn current_seq_len(&self) -> usize {
        self.k.current_seq_len()
    }

    /// Empties the cache and drops the buffers.
    pub fn reset(&mut self) {
        self.k.reset();
        self.v.reset();
    }
}
