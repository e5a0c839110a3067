//! The layers of a decoder. Within `Lora::attach` the linear ones look for adapters.

use std::sync::Arc;

use candle_core::{Result, Tensor};
use candle_headroom::nn::kv_cache::KvCache;
use candle_headroom::nn::rotary_emb::rope_thd_both;
use candle_headroom::nn::{Attention, Module, RmsNorm, attention, ops, recompute_tiled, rms_norm};
use tracing::{Span, trace_span};

use super::base::{Base, Projection};
use super::config::Config;
use super::rope::Positions;

/// Attention and perceptron, each after a norm and beside what comes in.
pub struct Block {
    index: usize,
    head_dim: usize,
    window: Option<usize>,
    /// Before the attention, and before the perceptron.
    norms: [RmsNorm; 2],
    /// Of queries and keys.
    head_norms: Option<[RmsNorm; 2]>,
    /// Queries, keys, values and output.
    attention: [Projection; 4],
    /// Gate, up and down.
    mlp: Arc<[Projection; 3]>,
    /// The width of what gate and up return.
    inner: usize,
}

impl Block {
    pub fn new(config: &Config, index: usize, base: &Base) -> Result<Self> {
        let path = format!("model.layers.{index}");
        let vb = base.vb.pp(&path);
        let norm = |name: &str, width| rms_norm(width, config.rms_norm_eps, vb.pp(name));
        let norms = |[a, b]: [&str; 2], width| Result::Ok([norm(a, width)?, norm(b, width)?]);
        let head_norms = || norms(["self_attn.q_norm", "self_attn.k_norm"], config.head_dim);
        let layers = config.linear_layers();
        let [q, k, v, output, gate, up, down] =
            layers.each_ref().map(|layer| base.linear(&path, layer));
        Ok(Self {
            index,
            head_dim: config.head_dim,
            window: (config.sliding_window).filter(|_| index >= config.max_window_layers),
            norms: norms(
                ["input_layernorm", "post_attention_layernorm"],
                config.hidden_size,
            )?,
            head_norms: config.norms_heads().then(head_norms).transpose()?,
            attention: [q?, k?, v?, output?],
            mlp: Arc::new([gate?, up?, down?]),
            inner: config.intermediate_size,
        })
    }

    pub fn forward(
        &self,
        x: &Tensor,
        positions: &Positions,
        cache: Option<&mut KvCache>,
    ) -> Result<Tensor> {
        let _span = of_layer(self.index).entered();
        let [before_attention, before_mlp] = &self.norms;
        let normed = before_attention.forward(x)?;
        let mixed = self.attend(&normed, positions, cache)?;
        let (x, normed) = before_mlp.forward_residual(&mixed, x)?;
        ops::add(&x, &self.mlp(&normed, positions.time)?)
    }

    /// Causal attention, in which query heads may share key heads.
    fn attend(
        &self,
        x: &Tensor,
        positions: &Positions,
        cache: Option<&mut KvCache>,
    ) -> Result<Tensor> {
        let _span = trace_span!("self_attn").entered();
        let (samples, time, _) = x.dims3()?;
        let heads = |of: &Projection| of.forward(x)?.reshape((samples, time, (), self.head_dim));
        let [q, k, v, output] = &self.attention;
        let (mut q, mut k, v) = (heads(q)?, heads(k)?, heads(v)?);
        if let Some([of_q, of_k]) = &self.head_norms {
            (q, k) = (of_q.forward(&q)?, of_k.forward(&k)?);
        }
        let [cos, sin] = &positions.rotations;
        let (q, k) = rope_thd_both(&q, &k, cos, sin)?;
        let (q, k, v) = (q.transpose(1, 2)?, k.transpose(1, 2)?, v.transpose(1, 2)?);
        let (k, v) = match cache {
            None => (k, v),
            Some(cache) => cache.append(&k, &v)?,
        };
        let mut options = Attention::default().causal().chunk(SCORES);
        if !positions.texts.is_empty() {
            options = options.lengths(&positions.texts, &positions.texts);
        }
        if let Some(window) = self.window {
            options = options.window(window.saturating_sub(1), 0);
        }
        let mixed = attention(&q, &k, &v, &options)?.transpose(1, 2)?;
        output.forward(&mixed.reshape((samples, time, ()))?)
    }

    /// down(silu(gate(x)) · up(x)) (Shazeer 2020, arXiv 2002.05202), for samples of many tokens some at a time.
    fn mlp(&self, x: &Tensor, time: usize) -> Result<Tensor> {
        let _span = trace_span!("mlp").entered();
        let layers = Arc::clone(&self.mlp);
        let forward = move |x: &Tensor| {
            let [gate, up, down] = &*layers;
            down.forward(&ops::silu_mul(&gate.forward(x)?, &up.forward(x)?)?)
        };
        let of_token = self.inner * x.dtype().size_in_bytes();
        match tile(time, of_token) {
            Some(tokens) => recompute_tiled(x, tokens, forward),
            None => forward(x),
        }
    }

    /// The same block for evaluation: it shares its parameters with the trained one, keeps no graph, and drops nothing.
    pub fn without_graph(&self) -> Self {
        let norms = |norms: &[RmsNorm; 2]| norms.each_ref().map(norm_without_graph);
        Self {
            norms: norms(&self.norms),
            head_norms: self.head_norms.as_ref().map(norms),
            attention: self.attention.each_ref().map(Projection::without_graph),
            mlp: Arc::new(self.mlp.each_ref().map(Projection::without_graph)),
            ..*self
        }
    }
}

/// The bytes of scores at a time, half of the default: beside them lies all else of a recomputed block.
const SCORES: usize = 128 << 20;
/// The bytes of one activation of a sample above which its perceptron is cut, since a trainer cuts batches, but no samples.
const LONG: usize = 64 << 20;
/// The bytes of one activation of a tile, 1,024 tokens of Llama-3.1-8B. Its backward pass has five at once, beside a slice of a frozen weight, which
/// is about what attention takes for its scores.
const TILE: usize = 28 << 20;

/// The tokens of a perceptron's tile, if a sample is so long, from its tokens and the bytes of an activation for each. A tile costs one more
/// forward pass.
fn tile(tokens: usize, of_token: usize) -> Option<usize> {
    let is_long = tokens.saturating_mul(of_token) > LONG;
    is_long.then(|| (TILE / of_token.max(1)).max(1))
}

pub fn norm_without_graph(norm: &RmsNorm) -> RmsNorm {
    RmsNorm::new(norm.weight().detach(), norm.eps())
}

/// A span's name is a constant, so each layer has one of its own. Layers beyond the last share one.
macro_rules! spans {
    ($index:expr; $($known:literal)*) => {
        match $index {
            $($known => trace_span!(concat!("layers.", $known)),)*
            index => trace_span!("layers", index),
        }
    };
}

/// The span of a block.
fn of_layer(index: usize) -> Span {
    spans!(index;
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
        32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
        64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95)
}
