use candle_core::{Result, Tensor};

use super::overwrite::overwrite;
use super::stored::without_graph;

/// Keys and values of the positions so far, concatenated anew by each append, as [`candle_nn::kv_cache::ConcatKvCache`], with a
/// backward pass for the new positions.
///
/// Cache and graph share the concatenation. The graph keeps the new keys and values besides.
#[derive(Debug, Clone)]
pub struct ConcatKvCache {
    k: Option<Tensor>,
    v: Option<Tensor>,
    dim: usize,
}

impl ConcatKvCache {
    /// Makes an empty cache along dimension `dim`.
    pub fn new(dim: usize) -> Self {
        Self {
            k: None,
            v: None,
            dim,
        }
    }

    /// Returns the number of positions.
    pub fn current_seq_len(&self) -> usize {
        let positions = self.k.as_ref().and_then(|k| k.dims().get(self.dim));
        positions.copied().unwrap_or(0)
    }

    /// Returns whether nothing was appended.
    pub fn is_empty(&self) -> bool {
        self.k.is_none()
    }

    /// Returns the dimension of the positions.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Appends keys and values, and returns those of all positions. The new ones carry their graph.
    ///
    /// # Errors
    /// If `k` or `v` does not have the shape, apart from the number of positions, the type and the device of earlier ones; if the
    /// concatenation cannot be allocated.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let before = self.current_seq_len();
        let all_k = extended(&self.k, k, self.dim)?;
        // Frees the earlier keys before room is needed for all values.
        self.k = Some(without_graph(&all_k)?);
        let all_v = extended(&self.v, v, self.dim);
        match all_v.and_then(|all_v| Ok((without_graph(&all_v)?, all_v))) {
            Ok((kept, all_v)) => {
                self.v = Some(kept);
                Ok((all_k, all_v))
            }
            Err(error) => {
                let earlier = || all_k.detach().narrow(self.dim, 0, before);
                self.k = self.v.as_ref().map(|_| earlier()).transpose()?;
                Err(error)
            }
        }
    }

    /// Empties the cache.
    pub fn reset(&mut self) {
        (self.k, self.v) = (None, None);
    }

    /// Returns the keys so far, without a graph.
    pub fn k(&self) -> Option<&Tensor> {
        self.k.as_ref()
    }

    /// Returns the values so far, without a graph.
    pub fn v(&self) -> Option<&Tensor> {
        self.v.as_ref()
    }

    /// Returns the keys so far, without a graph.
    pub fn k_mut(&mut self) -> Option<&mut Tensor> {
        self.k.as_mut()
    }

    /// Returns the values so far, without a graph.
    pub fn v_mut(&mut self) -> Option<&mut Tensor> {
        self.v.as_mut()
    }

    /// Returns the keys and values, without a graph; `None` if nothing was appended.
    pub fn into_inner(self) -> Option<(Tensor, Tensor)> {
        self.k.zip(self.v)
    }
}

fn extended(kept: &Option<Tensor>, new: &Tensor, dim: usize) -> Result<Tensor> {
    let new = new.contiguous()?;
    match kept {
        Some(kept) => overwrite(kept, &new, dim, kept.dim(dim)?, usize::MAX),
        None => Ok(new),
    }
}
