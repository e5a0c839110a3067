use candle_core::{Device, Result, Tensor, bail};

use super::concat::{overwrite, without_graph};

/// The keys or the values of a [`KvCache`], in a buffer that grows, as [`candle_nn::kv_cache::Cache`].
///
/// What it keeps has no graph: gradients arrive through what [`KvCache::append`](Pair::append) returns.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::kv_cache::Cache;
///
/// let mut cache = Cache::new(0, 2); // a buffer of 2 positions, along dimension 0
/// cache.append(&Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?)?;
/// assert_eq!(cache.max_seq_len(), 4); // grown by 2
/// let data = cache.current_data()?.expect("three positions");
/// assert_eq!(data.to_vec1::<f32>()?, [1., 2., 3.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub type Cache = Ring<false>;

/// The keys or the values of the last positions in a ring, as [`candle_nn::kv_cache::RotatingCache`], with a backward pass for the
/// new positions.
///
/// With a graph, an append to a cache that is not empty copies the ring once; graph and cache share the copy. The graph keeps the
/// new positions besides. Without one, what is returned changes with the next append:
/// [what this means for other gradients](super#constant-keys-and-values).
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::kv_cache::RotatingCache;
///
/// // The last 4 positions, along dimension 0.
/// let mut cache = RotatingCache::new(0, 4);
/// for position in 0..5 {
///     cache.append(&Tensor::new(&[position as f32], &Device::Cpu)?)?;
/// }
/// assert_eq!(cache.positions(1), [4, 5, 2, 3]); // in the order of the ring
/// let all = cache.append(&Tensor::new(&[5f32], &Device::Cpu)?)?;
/// assert_eq!(all.to_vec1::<f32>()?, [4., 5., 2., 3.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub type RotatingCache = Ring<true>;

/// Keys or values: a [`RotatingCache`] if it rotates, else a [`Cache`].
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::kv_cache::{Cache, Ring, RotatingCache};
///
/// /// The number of positions that a cache of either kind has seen.
/// fn seen<const ROTATES: bool>(cache: &Ring<ROTATES>) -> usize {
///     cache.current_seq_len()
/// }
///
/// let mut cache = RotatingCache::new(0, 2);
/// cache.append(&Tensor::zeros(3, DType::F32, &Device::Cpu)?)?;
/// assert_eq!((seen(&cache), seen(&Cache::new(0, 2))), (3, 0));
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Ring<const ROTATES: bool> {
    dim: usize,
    /// Without a graph.
    stored: Option<Tensor>,
    /// Whether its memory is also that of a tensor in a graph, so that it must not be written to.
    is_shared: bool,
    offset: usize,
    current_seq_len: usize,
    grow_by: usize,
    max_seq_len: usize,
}

impl<const ROTATES: bool> Ring<ROTATES> {
    /// Makes an empty cache along dimension `dim`: a [`RotatingCache`] of the last `max_seq_len` positions, or a [`Cache`] with a
    /// buffer of `max_seq_len` positions that grows by as many.
    ///
    /// ```
    /// use candle_headroom_nn::kv_cache::RotatingCache;
    ///
    /// let cache = RotatingCache::new(2, 4096); // for (batch, heads, positions, width)
    /// assert_eq!((cache.dim(), cache.max_seq_len()), (2, 4096));
    /// assert_eq!(cache.current_seq_len(), 0);
    /// ```
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Self {
            dim,
            stored: None,
            is_shared: false,
            offset: 0,
            current_seq_len: 0,
            grow_by: max_seq_len,
            max_seq_len,
        }
    }

    /// Returns the dimension of the positions.
    ///
    /// ```
    /// # use candle_headroom_nn::kv_cache::Cache;
    /// let cache = Cache::new(2, 16);
    /// assert_eq!(cache.dim(), 2);
    /// ```
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Returns the number of positions seen, which may exceed those in a ring.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom_nn::kv_cache::RotatingCache;
    /// let mut cache = RotatingCache::new(0, 2);
    /// cache.append(&Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?)?;
    /// assert_eq!(cache.current_seq_len(), 3); // of which the ring holds 2
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn current_seq_len(&self) -> usize {
        self.current_seq_len
    }

    /// Returns the number of positions for which the buffer has room, or will have once it is allocated.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::kv_cache::Cache;
    /// let mut cache = Cache::new(0, 4);
    /// cache.append(&Tensor::zeros(6, DType::F32, &Device::Cpu)?)?;
    /// assert_eq!(cache.max_seq_len(), 8);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// Returns the buffer of [`max_seq_len`](Self::max_seq_len) positions. An append with a graph makes no buffer: it leaves the
    /// positions alone.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::kv_cache::Cache;
    /// let mut cache = Cache::new(0, 4);
    /// assert!(cache.all_data().is_none());
    /// cache.append(&Tensor::zeros(1, DType::F32, &Device::Cpu)?)?;
    /// assert_eq!(cache.all_data().as_ref().expect("a buffer").dims(), [4]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn all_data(&self) -> &Option<Tensor> {
        &self.stored
    }

    /// Returns the positions in the cache, those of a ring in its order, without a graph; `None` before the first append.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom_nn::kv_cache::RotatingCache;
    /// let mut cache = RotatingCache::new(0, 2);
    /// cache.append(&Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?)?;
    /// let data = cache.current_data()?.expect("two positions");
    /// assert_eq!(data.to_vec1::<f32>()?, [2., 3.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// candle's.
    pub fn current_data(&self) -> Result<Option<Tensor>> {
        let held = self.current_seq_len.min(self.max_seq_len);
        let stored = self.stored.as_ref();
        stored.map(|all| all.narrow(self.dim, 0, held)).transpose()
    }

    /// Empties the cache and drops the buffer. It stays as large as it has grown.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom_nn::kv_cache::RotatingCache;
    /// let mut cache = RotatingCache::new(0, 2);
    /// cache.append(&Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?)?;
    /// cache.reset();
    /// assert_eq!(cache.current_seq_len(), 0);
    /// assert!(cache.current_data()?.is_none());
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn reset(&mut self) {
        (self.stored, self.is_shared) = (None, false);
        (self.offset, self.current_seq_len) = (0, 0);
    }

    /// Appends positions and returns what the cache holds then; where as many as fit into a ring replace all of it, all new ones. In a
    /// graph they carry it, and no memory is written to.
    pub(super) fn extend(&mut self, new: &Tensor, in_graph: bool) -> Result<Tensor> {
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
        let (all, stored) = if in_graph {
            let all = match self.current_data()?.filter(|_| !replaces) {
                Some(kept) => overwrite(&kept, new, dim, at, size)?,
                None => new.clone(),
            };
            let kept = without_graph(&all)?;
            let first = kept.dim(dim)? - held;
            (all, kept.narrow(dim, first, held)?)
        } else {
            let last = new.narrow(dim, count.saturating_sub(size), count.min(size))?;
            let buffer = self.writable(new, size)?;
            let write = |from, count, at| {
                let part = last.narrow(dim, from, count)?.contiguous()?;
                buffer.slice_set(&part, dim, at)
            };
            let before_end = count.min(size - at);
            write(0, before_end, at)?;
            if before_end < count.min(size) {
                write(before_end, count - before_end, 0)?;
            }
            let all = match replaces {
                true => new.clone(),
                false => buffer.narrow(dim, 0, held)?,
            };
            (all, buffer)
        };
        (self.stored, self.is_shared) = (Some(stored), in_graph);
        self.offset = match replaces {
            true => 0,
            false => (at + count) % size.max(1),
        };
        (self.current_seq_len, self.max_seq_len) = (seen + count, size);
        Ok(all)
    }

    /// A contiguous buffer that may be written to. It has `size` positions, at least as many as are stored, and begins with these. The
    /// other dimensions and the type are those of `like`.
    fn writable(&self, like: &Tensor, size: usize) -> Result<Tensor> {
        let zeros = |count| {
            let mut shape = like.dims().to_vec();
            if let Some(positions) = shape.get_mut(self.dim) {
                *positions = count;
            }
            Tensor::zeros(shape, like.dtype(), like.device())
        };
        let Some(stored) = &self.stored else {
            return zeros(size);
        };
        match stored.dim(self.dim)? {
            0 => zeros(size),
            have if have < size => {
                Tensor::cat(&[&stored.contiguous()?, &zeros(size - have)?], self.dim)
            }
            _ if self.is_shared => stored.force_contiguous(),
            _ => Ok(stored.clone()),
        }
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
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::kv_cache::Cache;
    ///
    /// let mut cache = Cache::new(0, 8);
    /// cache.append(&Tensor::new(&[1f32, 2.], &Device::Cpu)?)?;
    /// cache.append(&Tensor::new(&[3f32], &Device::Cpu)?)?;
    /// let data = cache.current_data()?.expect("three positions");
    /// assert_eq!(data.to_vec1::<f32>()?, [1., 2., 3.]);
    /// assert!(cache.append(&Tensor::new(&[4f64], &Device::Cpu)?).is_err()); // another type
    /// # Ok::<(), candle_core::Error>(())
    /// ```
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
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::kv_cache::RotatingCache;
    /// let mut cache = RotatingCache::new(0, 4);
    /// cache.append(&Tensor::zeros(3, DType::F32, &Device::Cpu)?)?;
    /// assert_eq!(cache.offset(), 3);
    /// cache.append(&Tensor::zeros(2, DType::F32, &Device::Cpu)?)?;
    /// assert_eq!(cache.offset(), 1); // written to 3 and 0
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Appends positions. Returns those in the ring, in its order; if there are at least as many new ones as fit into the ring,
    /// these alone, all of them. They carry their graph.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::kv_cache::RotatingCache;
    ///
    /// let mut cache = RotatingCache::new(0, 2);
    /// let all = cache.append(&Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?)?;
    /// assert_eq!(all.to_vec1::<f32>()?, [1., 2., 3.]); // more than the ring holds
    /// let all = cache.append(&Tensor::new(&[4f32], &Device::Cpu)?)?;
    /// assert_eq!(all.to_vec1::<f32>()?, [4., 3.]); // in the place of 2
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If `src` does not have the shape, apart from the number of positions, the type and the device of earlier ones; if the ring
    /// cannot be allocated.
    pub fn append(&mut self, src: &Tensor) -> Result<Tensor> {
        self.extend(src, src.track_op())
    }

    /// Returns the position of each entry that an append of `seq_len` positions will return, counted from 0 since the cache was empty.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::kv_cache::RotatingCache;
    /// let mut cache = RotatingCache::new(0, 4);
    /// assert_eq!(cache.positions(3), [0, 1, 2]);
    /// cache.append(&Tensor::zeros(3, DType::F32, &Device::Cpu)?)?;
    /// assert_eq!(cache.positions(2), [4, 1, 2, 3]); // the last one in the place of the first
    /// # Ok::<(), candle_core::Error>(())
    /// ```
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

    /// Returns the mask for an append of `seq_len` positions, u8 of shape (`seq_len`, entries returned): 1 where an entry lies after a
    /// new position or more than `max_seq_len` before it, else 0. `None` for one position, which sees all.
    ///
    /// ```
    /// use candle_core::Device;
    /// use candle_headroom_nn::kv_cache::RotatingCache;
    ///
    /// let cache = RotatingCache::new(2, 4);
    /// let mask = cache.attn_mask(2, &Device::Cpu)?.expect("a mask");
    /// assert_eq!(mask.to_vec2::<u8>()?, [[0, 1], [0, 0]]);
    /// assert!(cache.attn_mask(1, &Device::Cpu)?.is_none());
    /// # Ok::<(), candle_core::Error>(())
    /// ```
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
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::kv_cache::{KvCache, Pair, RotatingKvCache};
///
/// /// The number of positions that a cache of either kind has seen.
/// fn seen<const ROTATES: bool>(cache: &Pair<ROTATES>) -> usize {
///     cache.current_seq_len()
/// }
///
/// let (mut all, mut last) = (KvCache::new(0, 2), RotatingKvCache::new(0, 2));
/// let new = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
/// all.append(&new, &new)?;
/// last.append(&new, &new)?;
/// assert_eq!((seen(&all), seen(&last)), (3, 3));
/// # Ok::<(), candle_core::Error>(())
/// ```
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
/// positions: see [`RotatingCache`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::kv_cache::RotatingKvCache;
///
/// let mut cache = RotatingKvCache::new(0, 2); // of the last 2 positions
/// let prompt = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
/// cache.append(&prompt, &prompt)?;
/// let token = Tensor::new(&[3f32], &Device::Cpu)?;
/// let (k, v) = cache.append(&token, &token)?;
/// assert_eq!(k.to_vec1::<f32>()?, [3., 2.]); // in the order of the ring
/// assert_eq!(v.to_vec1::<f32>()?, [3., 2.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub type RotatingKvCache = Pair<true>;

impl<const ROTATES: bool> Pair<ROTATES> {
    /// Makes an empty cache along dimension `dim`, with room for `max_seq_len` positions: a [`KvCache`] grows by as many, a
    /// [`RotatingKvCache`] keeps the last ones.
    ///
    /// ```
    /// use candle_headroom_nn::kv_cache::KvCache;
    ///
    /// let cache = KvCache::new(2, 4096); // for (batch, heads, positions, width)
    /// assert_eq!((cache.k_cache().dim(), cache.k_cache().max_seq_len()), (2, 4096));
    /// ```
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Self {
            k: Ring::new(dim, max_seq_len),
            v: Ring::new(dim, max_seq_len),
        }
    }

    /// Returns the keys' cache.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::kv_cache::KvCache;
    /// let mut cache = KvCache::new(0, 16);
    /// let (k, v) = (Tensor::zeros(3, DType::F32, &Device::Cpu)?, Tensor::ones(3, DType::F32, &Device::Cpu)?);
    /// cache.append(&k, &v)?;
    /// assert_eq!(cache.k_cache().current_seq_len(), 3);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn k_cache(&self) -> &Ring<ROTATES> {
        &self.k
    }

    /// Returns the values' cache.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::kv_cache::KvCache;
    /// let mut cache = KvCache::new(0, 16);
    /// let (k, v) = (Tensor::zeros(3, DType::F32, &Device::Cpu)?, Tensor::ones(3, DType::F32, &Device::Cpu)?);
    /// cache.append(&k, &v)?;
    /// assert_eq!(cache.v_cache().current_seq_len(), 3);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn v_cache(&self) -> &Ring<ROTATES> {
        &self.v
    }

    /// Returns the keys' cache.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::kv_cache::KvCache;
    /// let mut cache = KvCache::new(0, 16);
    /// let (k, v) = (Tensor::zeros(3, DType::F32, &Device::Cpu)?, Tensor::ones(3, DType::F32, &Device::Cpu)?);
    /// cache.k_cache_mut().append(&k)?;
    /// cache.v_cache_mut().append(&v)?;
    /// assert_eq!(cache.current_seq_len(), 3);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn k_cache_mut(&mut self) -> &mut Ring<ROTATES> {
        &mut self.k
    }

    /// Returns the values' cache.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::kv_cache::KvCache;
    /// let mut cache = KvCache::new(0, 16);
    /// let (k, v) = (Tensor::zeros(3, DType::F32, &Device::Cpu)?, Tensor::ones(3, DType::F32, &Device::Cpu)?);
    /// cache.v_cache_mut().append(&v)?;
    /// assert_eq!((cache.k_cache().current_seq_len(), cache.v_cache().current_seq_len()), (0, 3));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn v_cache_mut(&mut self) -> &mut Ring<ROTATES> {
        &mut self.v
    }

    /// Returns the keys that the cache holds, without a graph, those of a ring in its order; `None` before the first append.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::kv_cache::KvCache;
    /// let mut cache = KvCache::new(0, 16);
    /// let (k, v) = (Tensor::zeros(3, DType::F32, &Device::Cpu)?, Tensor::ones(3, DType::F32, &Device::Cpu)?);
    /// cache.append(&k, &v)?;
    /// assert_eq!(cache.k()?.expect("keys").to_vec1::<f32>()?, [0.; 3]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// candle's.
    pub fn k(&self) -> Result<Option<Tensor>> {
        self.k.current_data()
    }

    /// Returns the values that the cache holds, as [`k`](Self::k).
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::kv_cache::KvCache;
    /// let mut cache = KvCache::new(0, 16);
    /// let (k, v) = (Tensor::zeros(3, DType::F32, &Device::Cpu)?, Tensor::ones(3, DType::F32, &Device::Cpu)?);
    /// cache.append(&k, &v)?;
    /// assert_eq!(cache.v()?.expect("values").to_vec1::<f32>()?, [1.; 3]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// candle's.
    pub fn v(&self) -> Result<Option<Tensor>> {
        self.v.current_data()
    }

    /// Appends keys and values, and returns those of all positions; of a ring what [`RotatingCache::append`] does. The new ones carry
    /// their graph.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::kv_cache::KvCache;
    ///
    /// let mut cache = KvCache::new(2, 16);
    /// let prompt = Tensor::zeros((1, 2, 5, 8), DType::F32, &Device::Cpu)?; // (batch, heads, positions, width)
    /// cache.append(&prompt, &prompt)?;
    /// let token = prompt.narrow(2, 0, 1)?;
    /// let (k, v) = cache.append(&token, &token)?;
    /// assert_eq!((k.dims(), v.dims()), (&[1, 2, 6, 8][..], &[1, 2, 6, 8][..]));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Cache::append`], and of [`RotatingCache::append`]. Nothing is appended then.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        // A graph may keep both, so neither is written to later.
        let in_graph = k.track_op() || v.track_op();
        let mut next = self.clone();
        let all = (next.k.extend(k, in_graph)?, next.v.extend(v, in_graph)?);
        *self = next;
        Ok(all)
    }

    /// Returns the number of positions seen, which may exceed those in a ring.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::kv_cache::KvCache;
    /// let mut cache = KvCache::new(0, 16);
    /// let (k, v) = (Tensor::zeros(3, DType::F32, &Device::Cpu)?, Tensor::ones(3, DType::F32, &Device::Cpu)?);
    /// cache.append(&k, &v)?;
    /// assert_eq!(cache.current_seq_len(), 3);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn current_seq_len(&self) -> usize {
        self.k.current_seq_len()
    }

    /// Empties the cache and drops the buffers.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::kv_cache::KvCache;
    /// let mut cache = KvCache::new(0, 16);
    /// let (k, v) = (Tensor::zeros(3, DType::F32, &Device::Cpu)?, Tensor::ones(3, DType::F32, &Device::Cpu)?);
    /// cache.append(&k, &v)?;
    /// cache.reset();
    /// assert!(cache.k()?.is_none());
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn reset(&mut self) {
        self.k.reset();
        self.v.reset();
    }
}

impl RotatingKvCache {
    /// Returns the index in the ring to which the next position is written.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::kv_cache::RotatingKvCache;
    /// let mut cache = RotatingKvCache::new(0, 4);
    /// let new = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
    /// cache.append(&new, &new)?;
    /// assert_eq!(cache.offset(), 3);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn offset(&self) -> usize {
        self.k.offset()
    }

    /// Returns the mask for an append of `seq_len` positions: [`RotatingCache::attn_mask`].
    ///
    /// ```
    /// # use candle_core::Device;
    /// # use candle_headroom_nn::kv_cache::RotatingKvCache;
    /// let cache = RotatingKvCache::new(2, 4);
    /// let mask = cache.attn_mask(2, &Device::Cpu)?.expect("a mask");
    /// assert_eq!(mask.to_vec2::<u8>()?, [[0, 1], [0, 0]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// candle's.
    pub fn attn_mask(&self, seq_len: usize, device: &Device) -> Result<Option<Tensor>> {
        self.k.attn_mask(seq_len, device)
    }

    /// Returns the position of each entry that an append of `seq_len` positions will return.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::kv_cache::RotatingKvCache;
    /// let mut cache = RotatingKvCache::new(0, 4);
    /// let new = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
    /// cache.append(&new, &new)?;
    /// assert_eq!(cache.positions(2), [4, 1, 2, 3]); // the last one in the place of the first
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn positions(&self, seq_len: usize) -> Vec<usize> {
        self.k.positions(seq_len)
    }
}
