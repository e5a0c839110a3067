//! `candle_nn::kv_cache`, differentiable. `KvCache` and `RotatingKvCache` write keys and values into a buffer in place
//! (`Tensor::slice_set`), and `ConcatKvCache` detaches them. Here the new positions keep their graph; those of earlier calls do not.

use candle_core::{Device, Result, Tensor};
pub use candle_nn::kv_cache::*;

/// One of keys or values. `limit` is the number of positions that are kept, if there is one.
#[derive(Debug, Clone)]
struct Kept {
    data: Option<Tensor>,
    dim: usize,
    limit: Option<usize>,
}

impl Kept {
    /// Returns everything that the next query may see, the new positions included.
    fn append(&mut self, new: &Tensor) -> Result<Tensor> {
        let all = match &self.data {
            Some(data) => Tensor::cat(&[data, new], self.dim)?,
            None => new.clone(),
        };
        let length = all.dim(self.dim)?;
        let kept = self.limit.map_or(length, |limit| limit.min(length));
        self.data = Some(all.narrow(self.dim, length - kept, kept)?.detach());
        Ok(all)
    }
}

#[derive(Debug, Clone)]
pub struct ConcatKvCache(KvCache);

impl ConcatKvCache {
    pub fn new(dim: usize) -> Self {
        Self(KvCache::new(dim, 0))
    }

    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        self.0.append(&k.contiguous()?, &v.contiguous()?)
    }

    pub fn current_seq_len(&self) -> usize {
        self.0.current_seq_len()
    }

    pub fn reset(&mut self) {
        self.0.reset();
    }
}

#[derive(Debug, Clone)]
pub struct KvCache {
    k: Kept,
    v: Kept,
    seen: usize,
}

impl KvCache {
    pub fn new(dim: usize, _max_seq_len: usize) -> Self {
        let kept = Kept {
            data: None,
            dim,
            limit: None,
        };
        Self {
            k: kept.clone(),
            v: kept,
            seen: 0,
        }
    }

    pub fn k(&self) -> Result<Option<Tensor>> {
        Ok(self.k.data.clone())
    }

    pub fn v(&self) -> Result<Option<Tensor>> {
        Ok(self.v.data.clone())
    }

    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        self.seen += k.dim(self.k.dim)?;
        Ok((self.k.append(k)?, self.v.append(v)?))
    }

    pub fn current_seq_len(&self) -> usize {
        self.seen
    }

    pub fn reset(&mut self) {
        (self.k.data, self.v.data, self.seen) = (None, None, 0);
    }
}

/// In the order of positions, where candle's is in the order of the buffer: the same until the buffer is full. The last window is
/// all that the next call sees, so calls after the first must have one token each, as in generation.
#[derive(Debug, Clone)]
pub struct RotatingKvCache {
    kept: KvCache,
    window: usize,
}

impl RotatingKvCache {
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        let kept = Kept {
            data: None,
            dim,
            limit: Some(max_seq_len),
        };
        Self {
            kept: KvCache {
                k: kept.clone(),
                v: kept,
                seen: 0,
            },
            window: max_seq_len,
        }
    }

    pub fn k(&self) -> Result<Option<Tensor>> {
        self.kept.k()
    }

    pub fn v(&self) -> Result<Option<Tensor>> {
        self.kept.v()
    }

    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        self.kept.append(k, v)
    }

    pub fn offset(&self) -> usize {
        self.kept.seen % self.window
    }

    pub fn current_seq_len(&self) -> usize {
        self.kept.seen
    }

    pub fn positions(&self, seq_len: usize) -> Vec<usize> {
        self.like_candles().positions(seq_len)
    }

    pub fn attn_mask(&self, seq_len: usize, device: &Device) -> Result<Option<Tensor>> {
        self.like_candles().attn_mask(seq_len, device)
    }

    pub fn reset(&mut self) {
        self.kept.reset();
    }

    /// An empty cache of candle's, which is all that the first call of a forward pass needs.
    fn like_candles(&self) -> candle_nn::kv_cache::RotatingKvCache {
        candle_nn::kv_cache::RotatingKvCache::new(self.kept.k.dim, self.window)
    }
}
