use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::nn::kv_cache::KvCache;
use candle_headroom::nn::rotary_emb::rope_thd;
use candle_headroom::nn::{Attention, Module, RmsNorm, attention, rms_norm};

use super::config::Config;
use super::place::Place;
use super::projection::Projection;
use super::view::View;

/// What the tokens of a forward pass have in common in all layers.
#[derive(Clone)]
pub struct Positions {
    /// Cosines and sines.
    pub rotations: [Tensor; 2],
    /// Hides keys outside of the window; `None` if all are within.
    pub window: Option<Tensor>,
}

/// The mask of `count` queries after `first` keys: −∞ for keys that are `window` or more positions back.
pub fn window_mask(
    first: usize,
    count: usize,
    window: usize,
    dtype: DType,
    device: &Device,
) -> Result<Option<Tensor>> {
    let keys = first + count;
    if keys <= window {
        return Ok(None);
    }
    let values = (first..keys).flat_map(|query| {
        (0..keys).map(move |key| match key + window <= query {
            true => f32::NEG_INFINITY,
            false => 0.,
        })
    });
    let mask = Tensor::from_iter(values, &Device::Cpu)?;
    let mask = mask.reshape((1, 1, count, keys))?;
    Ok(Some(mask.to_dtype(dtype)?.to_device(device)?))
}

/// Causal attention, in which query heads may share key heads.
#[derive(Clone)]
pub struct SelfAttention {
    head_dim: usize,
    has_window: bool,
    q: Projection,
    k: Projection,
    v: Projection,
    o: Projection,
    /// Of queries and keys.
    norms: Option<[RmsNorm; 2]>,
}

impl SelfAttention {
    pub fn new(config: &Config, layer: usize, place: &Place) -> Result<Self> {
        let (hidden, queries, keys) =
            (config.hidden_size, config.query_width(), config.key_width());
        let projection = |name, inputs, outputs, has_bias| {
            Projection::new(inputs, outputs, has_bias, &place.pp(name))
        };
        let has_bias = config.attention_bias;
        let norm = |name| rms_norm(config.head_dim, config.rms_norm_eps, place.base.pp(name));
        let norms = || Result::Ok([norm("q_norm")?, norm("k_norm")?]);
        Ok(Self {
            head_dim: config.head_dim,
            has_window: config.window(layer).is_some(),
            q: projection("q_proj", hidden, queries, has_bias)?,
            k: projection("k_proj", hidden, keys, has_bias)?,
            v: projection("v_proj", hidden, keys, has_bias)?,
            o: projection("o_proj", queries, hidden, config.output_bias())?,
            norms: config.norms_heads().then(norms).transpose()?,
        })
    }

    pub fn forward(
        &self,
        x: &Tensor,
        positions: &Positions,
        cache: Option<&mut KvCache>,
    ) -> Result<Tensor> {
        let _span = tracing::trace_span!("self_attn").entered();
        let (samples, time, _) = x.dims3()?;
        let heads = |of: &Projection| of.forward(x)?.reshape((samples, time, (), self.head_dim));
        let (mut q, mut k, v) = (heads(&self.q)?, heads(&self.k)?, heads(&self.v)?);
        if let Some([of_q, of_k]) = &self.norms {
            (q, k) = (of_q.forward(&q)?, of_k.forward(&k)?);
        }
        let [cos, sin] = &positions.rotations;
        let q = rope_thd(&q, cos, sin)?.transpose(1, 2)?;
        let k = rope_thd(&k, cos, sin)?.transpose(1, 2)?;
        let v = v.transpose(1, 2)?;
        let (k, v) = match cache {
            None => (k, v),
            Some(cache) => cache.append(&k, &v)?,
        };
        let mut options = Attention::default().causal();
        if let Some(mask) = positions.window.as_ref().filter(|_| self.has_window) {
            options = options.mask(mask);
        }
        let mixed = attention(&q, &k, &v, &options)?.transpose(1, 2)?;
        self.o.forward(&mixed.reshape((samples, time, ()))?)
    }
}

impl View for SelfAttention {
    fn without_graph(&self) -> Self {
        let norms = self.norms.as_ref();
        Self {
            head_dim: self.head_dim,
            has_window: self.has_window,
            q: self.q.without_graph(),
            k: self.k.without_graph(),
            v: self.v.without_graph(),
            o: self.o.without_graph(),
            norms: norms.map(|norms| norms.each_ref().map(View::without_graph)),
        }
    }
}
