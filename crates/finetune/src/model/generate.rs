use candle_core::{DType, Result, Tensor, bail};
use candle_headroom::nn::kv_cache::KvCache;

use super::decoder::Decoder;

/// Keys and values of (samples, heads, time, width) grow along time.
const TIME: usize = 2;
/// Positions that a cache grows by.
const GROWTH: usize = 256;

impl Decoder {
    /// Continues a prompt by at most `most` tokens, up to the one at which `stop` says so, which is not returned, and to
    /// `max_position_embeddings` in all. `sampler` chooses a token by the logits `(vocabulary)`, f32. Each step computes its
    /// own token only: the keys and values of the earlier ones are cached.
    pub fn generate(
        &self,
        prompt: &[u32],
        most: usize,
        sampler: &mut impl FnMut(&Tensor) -> Result<u32>,
        stop: impl Fn(u32) -> bool,
    ) -> Result<Vec<u32>> {
        if prompt.is_empty() {
            bail!("there is no prompt to continue: give it at least one token")
        }
        let model = self.evaluation();
        let config = model.config();
        let room = config.max_position_embeddings.saturating_sub(prompt.len());
        let mut caches = vec![KvCache::new(TIME, GROWTH); config.num_hidden_layers];
        let mut made = Vec::new();
        let mut next = prompt.to_vec();
        while made.len() < most.min(room) {
            let tokens = Tensor::new(next.as_slice(), self.device())?.unsqueeze(0)?;
            let hidden = model.continued(&tokens, &mut caches)?;
            let last = hidden.narrow(1, next.len() - 1, 1)?;
            let logits = model.logits(&last)?.flatten_all()?.to_dtype(DType::F32)?;
            let token = sampler(&logits)?;
            if stop(token) {
                break;
            }
            made.push(token);
            next = vec![token];
        }
        Ok(made)
    }
}
