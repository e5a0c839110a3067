use std::ops::{Deref, DerefMut};

use candle_core::{Result, Tensor};
use candle_nn::kv_cache as candles;

use crate::graph::record;
use crate::kernel::count_in_range;

/// Keys and values of the positions so far, concatenated anew by each append, as [`candle_nn::kv_cache::ConcatKvCache`], with a
/// backward pass for the new positions. All other methods are candle's, and what they return has no graph.
///
/// Cache and graph share the concatenation. The graph keeps the new keys and values besides.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::kv_cache::ConcatKvCache;
///
/// let mut cache = ConcatKvCache::new(2); // (batch, heads, positions, width)
/// let prompt = Tensor::zeros((1, 2, 5, 8), DType::F32, &Device::Cpu)?;
/// cache.append(&prompt, &prompt)?;
/// let token = Tensor::ones((1, 2, 1, 8), DType::F32, &Device::Cpu)?;
/// let (k, _) = cache.append(&token, &token)?;
/// assert_eq!(k.dims(), [1, 2, 6, 8]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ConcatKvCache(candles::ConcatKvCache);

impl ConcatKvCache {
    /// Makes an empty cache along dimension `dim`.
    ///
    /// ```
    /// # use candle_headroom_nn::kv_cache::ConcatKvCache;
    /// let cache = ConcatKvCache::new(2); // for (batch, heads, positions, width)
    /// assert_eq!(cache.dim(), 2);
    /// assert!(cache.is_empty());
    /// ```
    pub fn new(dim: usize) -> Self {
        Self(candles::ConcatKvCache::new(dim))
    }

    /// Appends keys and values, and returns those of all positions. The new ones carry their graph.
    ///
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// use candle_headroom_nn::kv_cache::ConcatKvCache;
    ///
    /// let mut cache = ConcatKvCache::new(0);
    /// let prompt = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// cache.append(&prompt, &prompt)?;
    /// let token = Var::new(&[3f32], &Device::Cpu)?;
    /// let (k, v) = cache.append(&token, &token)?;
    /// assert_eq!(k.to_vec1::<f32>()?, [1., 2., 3.]);
    /// let gradients = (k * v)?.sum_all()?.backward()?;
    /// assert_eq!(gradients.get(&token).expect("a gradient").to_vec1::<f32>()?, [6.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If `k` or `v` does not have the shape, apart from the number of positions, the type and the device of earlier ones; if the
    /// concatenation cannot be allocated. Nothing is appended then.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let (k, v) = (k.contiguous()?, v.contiguous()?);
        let (dim, before) = (self.dim(), self.current_seq_len());
        let (Some(kept_k), Some(kept_v)) = (self.k(), self.v()) else {
            self.0.append(&without_graph(&k)?, &without_graph(&v)?)?;
            return Ok((k, v));
        };
        let kept_v = kept_v.clone();
        let all_k = overwrite(kept_k, &k, dim, before, usize::MAX)?;
        // Frees the earlier keys before room is needed for all values.
        let kept_k = without_graph(&all_k)?;
        self.k_mut().into_iter().for_each(|k| *k = kept_k.clone());
        let all_v = overwrite(&kept_v, &v, dim, before, usize::MAX);
        match all_v.and_then(|all_v| Ok((without_graph(&all_v)?, all_v))) {
            Ok((kept_v, all_v)) => {
                self.v_mut().into_iter().for_each(|v| *v = kept_v.clone());
                Ok((all_k, all_v))
            }
            Err(error) => {
                let earlier = kept_k.narrow(dim, 0, before)?;
                self.k_mut().into_iter().for_each(|k| *k = earlier.clone());
                Err(error)
            }
        }
    }

    /// Returns the keys and values, without a graph; `None` if nothing was appended.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom_nn::kv_cache::ConcatKvCache;
    /// let mut cache = ConcatKvCache::new(0);
    /// assert!(cache.clone().into_inner().is_none());
    /// cache.append(&Tensor::new(&[1f32], &Device::Cpu)?, &Tensor::new(&[2f32], &Device::Cpu)?)?;
    /// let (k, v) = cache.into_inner().expect("keys and values");
    /// assert_eq!((k.to_vec1::<f32>()?, v.to_vec1::<f32>()?), (vec![1.], vec![2.]));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn into_inner(self) -> Option<(Tensor, Tensor)> {
        self.0.into_inner()
    }
}

impl Deref for ConcatKvCache {
    type Target = candles::ConcatKvCache;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for ConcatKvCache {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// `kept` with `new` written to it along `dim` from index `at` on, which is at most its length; where `new` passes index `end`, it goes
/// on at index 0. `new` is shorter than `end`.
///
/// The gradient arrives at `new`; `kept` is a constant. The graph keeps `new`. If one of them is empty, the other comes back.
pub fn overwrite(kept: &Tensor, new: &Tensor, dim: usize, at: usize, end: usize) -> Result<Tensor> {
    let (have, count) = (kept.dim(dim)?, new.dim(dim)?);
    if have == 0 {
        return Ok(new.clone());
    }
    if count == 0 {
        return Ok(kept.detach());
    }
    let before_end = count.min(end - at);
    let from_start = count - before_end;
    let behind = (at + before_end).min(have);
    let (kept, constant) = (kept.detach(), new.detach());
    let mut parts = vec![
        constant.narrow(dim, before_end, from_start)?,
        kept.narrow(dim, from_start, at - from_start)?,
        constant.narrow(dim, 0, before_end)?,
        kept.narrow(dim, behind, have - behind)?,
    ];
    parts.retain(|part| part.dims().get(dim) != Some(&0));
    let elements = parts.iter().map(Tensor::elem_count).sum();
    count_in_range("kv-cache", new.device(), elements)?;
    let all = Tensor::cat(&parts, dim)?;
    record("kv-cache", [new], all, move |given| {
        let first = given.gradient.narrow(dim, at, before_end)?;
        let gradient = match from_start {
            0 => first,
            _ => Tensor::cat(&[first, given.gradient.narrow(dim, 0, from_start)?], dim)?,
        };
        Ok([Some(gradient)])
    })
}

/// The same values without the graph. Nothing is copied, except a Var: optimizers write to it.
pub fn without_graph(tensor: &Tensor) -> Result<Tensor> {
    match tensor.is_variable() {
        true => Ok(tensor.copy()?.detach()),
        false => Ok(tensor.detach()),
    }
}
