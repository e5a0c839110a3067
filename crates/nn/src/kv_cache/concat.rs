use std::ops::{Deref, DerefMut};

use candle_core::{Result, Tensor};
use candle_nn::kv_cache as candles;

use super::stored::{overwrite, without_graph};

/// Keys and values of the positions so far, concatenated anew by each append, as [`candle_nn::kv_cache::ConcatKvCache`], with a
/// backward pass for the new positions. All other methods are candle's, and what they return has no graph.
///
/// Cache and graph share the concatenation. The graph keeps the new keys and values besides.
#[derive(Debug, Clone)]
pub struct ConcatKvCache(candles::ConcatKvCache);

impl ConcatKvCache {
    /// Makes an empty cache along dimension `dim`.
    pub fn new(dim: usize) -> Self {
        Self(candles::ConcatKvCache::new(dim))
    }

    /// Appends keys and values, and returns those of all positions. The new ones carry their graph.
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
