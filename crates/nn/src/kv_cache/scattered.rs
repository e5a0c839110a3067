use std::ops::{Deref, DerefMut};

use candle_core::{DType, Device, Result, Tensor, bail};
use candle_nn::kv_cache::{self as candles, IndicesAndMask};

use crate::graph::record;

/// Keys and values of sequences that advance independently, each in a ring, as [`candle_nn::kv_cache::ScatteredKvCache`], with a
/// backward pass for the new positions.
///
/// With a graph, each append copies the rings. The graph keeps the copies, the new keys and values, and 4 bytes for each position of
/// each sequence's ring, batch × context. Without one, what is returned changes with the next append:
/// [what this means for other gradients](super#constant-keys-and-values).
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::kv_cache::ScatteredCacheBuilder;
///
/// let mut builder = ScatteredCacheBuilder::new(2, 4, DType::F32, &Device::Cpu)?; // 2 rings of 4 positions
/// let mut cache = builder.make_cache(1, 8)?; // heads, width
/// let new = Tensor::ones((2, 1, 1, 8), DType::F32, &Device::Cpu)?; // (batch, heads, positions, width)
/// let places = builder.indices_and_mask(1, &[true, false])?; // the first sequence advances
/// let (k, _) = cache.append(&new, &new, &places)?;
/// assert_eq!(k.dims(), [2, 1, 4, 8]);
/// assert_eq!(builder.positions(), [1, 0]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ScatteredKvCache(candles::ScatteredKvCache);

impl ScatteredKvCache {
    /// Writes keys and values, of shape (batch, heads, positions, head dimension), to the places of `iam`, and returns the rings.
    /// If there are at least as many new positions as a ring has, returns these alone and writes nothing. The new ones carry their
    /// graph.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::kv_cache::ScatteredCacheBuilder;
    ///
    /// let mut builder = ScatteredCacheBuilder::new(1, 3, DType::F32, &Device::Cpu)?;
    /// let mut cache = builder.make_cache(1, 1)?;
    /// let new = Tensor::full(5f32, (1, 1, 1, 1), &Device::Cpu)?;
    /// let places = builder.indices_and_mask(1, &[true])?;
    /// let (k, _) = cache.append(&new, &new, &places)?;
    /// assert_eq!(k.flatten_all()?.to_vec1::<f32>()?, [5., 0., 0.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If `k` and `v` do not have the shape and type of the rings, or not the number of positions for which `iam` was made.
    pub fn append(
        &mut self,
        k: &Tensor,
        v: &Tensor,
        iam: &IndicesAndMask,
    ) -> Result<(Tensor, Tensor)> {
        let (k, v) = (k.contiguous()?, v.contiguous()?);
        let (_, _, count, _) = k.dims4()?;
        let (batch, _, context, _) = self.0.k().dims4()?;
        if context <= count || !(k.track_op() || v.track_op()) {
            return self.0.append(&k, &v, iam);
        }
        // The number of the new position, from 1 on, that each entry receives; 0 for those that are not written.
        let device = k.device();
        let numbers = Tensor::arange(1, count as u32 + 1, device)?;
        let numbers = numbers.reshape((1, 1, count, 1))?;
        let numbers = numbers.repeat((batch, 1, 1, 1))?;
        let builder = candles::ScatteredCacheBuilder::new(batch, context, DType::U32, device)?;
        let (received, _) = builder.make_cache(1, 1)?.append(&numbers, &numbers, iam)?;

        let (all_k, all_v) = self.0.append(&k.detach(), &v.detach(), iam)?;
        Ok((
            through(&k, all_k.force_contiguous()?, received.clone())?,
            through(&v, all_v.force_contiguous()?, received)?,
        ))
    }
}

impl Deref for ScatteredKvCache {
    type Target = candles::ScatteredKvCache;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Makes `rings` a function of the new positions.
fn through(new: &Tensor, rings: Tensor, received: Tensor) -> Result<Tensor> {
    record("scattered-kv-cache", [new], rings, move |given| {
        let [new] = &given.inputs;
        let (batch, heads, count, width) = new.dims4()?;
        let gradient = given.gradient.contiguous()?;
        let places = received.broadcast_as(gradient.shape())?.contiguous()?;
        let sums = (batch, heads, count + 1, width);
        let sums = Tensor::zeros(sums, gradient.dtype(), gradient.device())?;
        let sums = sums.scatter_add(&places, &gradient, 2)?;
        Ok([Some(sums.narrow(2, 1, count)?)])
    })
}

/// Makes [`ScatteredKvCache`]s, and the places and masks for their appends, as [`candle_nn::kv_cache::ScatteredCacheBuilder`], whose
/// other methods it has.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom_nn::kv_cache::ScatteredCacheBuilder;
///
/// let mut builder = ScatteredCacheBuilder::new(2, 4, DType::F32, &Device::Cpu)?;
/// let layers = [builder.make_cache(1, 8)?, builder.make_cache(1, 8)?]; // one set of places for both
/// builder.indices_and_mask(3, &[true, true])?;
/// assert_eq!((layers.len(), builder.positions()), (2, &[3, 3][..]));
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ScatteredCacheBuilder(candles::ScatteredCacheBuilder);

impl ScatteredCacheBuilder {
    /// For `batch_size` sequences and rings of `context` positions.
    ///
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_headroom_nn::kv_cache::ScatteredCacheBuilder;
    /// let builder = ScatteredCacheBuilder::new(2, 4, DType::F32, &Device::Cpu)?;
    /// assert_eq!((builder.batch_size(), builder.positions()), (2, &[0, 0][..]));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// candle's.
    pub fn new(batch_size: usize, context: usize, dtype: DType, device: &Device) -> Result<Self> {
        candles::ScatteredCacheBuilder::new(batch_size, context, dtype, device).map(Self)
    }

    /// Makes the rings of one layer, (batch, `num_heads`, context, `head_dim`) for keys and for values, which begin with zeros.
    ///
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_headroom_nn::kv_cache::ScatteredCacheBuilder;
    /// let builder = ScatteredCacheBuilder::new(2, 4, DType::F32, &Device::Cpu)?;
    /// assert_eq!(builder.make_cache(3, 8)?.k().dims(), [2, 3, 4, 8]); // (batch, heads, context, width)
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If they cannot be allocated.
    pub fn make_cache(&self, num_heads: usize, head_dim: usize) -> Result<ScatteredKvCache> {
        self.0.make_cache(num_heads, head_dim).map(ScatteredKvCache)
    }

    /// Begins one sequence anew, if there is one with this index.
    ///
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_headroom_nn::kv_cache::ScatteredCacheBuilder;
    /// let mut builder = ScatteredCacheBuilder::new(2, 4, DType::F32, &Device::Cpu)?;
    /// builder.indices_and_mask(3, &[true, true])?;
    /// builder.reset_batch_index(0); // another text in its place
    /// assert_eq!(builder.positions(), [0, 3]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn reset_batch_index(&mut self, batch_index: usize) {
        if batch_index < self.batch_size() {
            self.0.reset_batch_index(batch_index);
        }
    }

    /// Advances the sequences that `batch_mask` names by `seq_len` positions. Returns their places, and a mask to be added to the
    /// scores: 0 for a position that is seen, −∞ for another. It is (batch, 1, `seq_len`, context), or (`seq_len`, `seq_len`) if
    /// there are at least as many new positions as a ring has.
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use candle_headroom_nn::kv_cache::ScatteredCacheBuilder;
    ///
    /// let mut builder = ScatteredCacheBuilder::new(1, 3, DType::F32, &Device::Cpu)?;
    /// let places = builder.indices_and_mask(1, &[true])?; // mask: [batch, 1, positions, context]
    /// let hidden = f32::NEG_INFINITY;
    /// assert_eq!(places.mask().flatten_all()?.to_vec1::<f32>()?, [0., hidden, hidden]);
    /// let error = builder.indices_and_mask(1, &[true, true]).unwrap_err();
    /// assert!(error.to_string().contains("a batch mask of 2 entries for 1 sequences"));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If `batch_mask` does not have one entry for each sequence.
    pub fn indices_and_mask(
        &mut self,
        seq_len: usize,
        batch_mask: &[bool],
    ) -> Result<IndicesAndMask> {
        let (given, batch) = (batch_mask.len(), self.batch_size());
        if given != batch {
            bail!("a batch mask of {given} entries for {batch} sequences");
        }
        self.0.indices_and_mask(seq_len, batch_mask)
    }
}

impl Deref for ScatteredCacheBuilder {
    type Target = candles::ScatteredCacheBuilder;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for ScatteredCacheBuilder {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}
