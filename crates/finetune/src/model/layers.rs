//! The layers of a decoder, each linear one perhaps with an adapter.

use std::sync::Arc;

use candle_core::{Result, Tensor};
use candle_headroom::nn::kv_cache::KvCache;
use candle_headroom::nn::rotary_emb::rope_thd_both;
use candle_headroom::nn::{
    Attention, Init, Linear, Module, RmsNorm, VarBuilder, attention, linear_b, linear_no_bias, ops,
    recompute_tiled, rms_norm,
};
use tracing::{Span, trace_span};

use super::config::Config;
use super::lora::Lora;
use super::rope::Positions;

/// Where in a model a layer is: its parameters, and those of all adapters.
#[derive(Clone)]
pub struct Place<'a> {
    /// At this path.
    pub base: VarBuilder<'a>,
    pub adapters: Option<(&'a Lora, VarBuilder<'a>)>,
}

impl<'a> Place<'a> {
    pub fn pp(&self, name: impl ToString) -> Self {
        Self {
            base: self.base.pp(name),
            adapters: self.adapters.clone(),
        }
    }

    /// The parameters of this layer's adapter, if it has one.
    fn adapter(&self) -> Option<(&'a Lora, VarBuilder<'a>)> {
        let (lora, adapters) = self.adapters.as_ref()?;
        let path = self.base.prefix();
        // PEFT's name of the model that has adapters.
        let own = adapters.pp("base_model.model").pp(&path);
        lora.applies_to(&path).then_some((*lora, own))
    }
}

/// A linear layer, perhaps with an adapter.
struct Projection {
    base: Linear,
    adapter: Option<Adapter>,
}

struct Adapter {
    /// (rank, inputs)
    a: Linear,
    /// (outputs, rank)
    b: Linear,
    scale: f64,
    dropout: f32,
}

impl Projection {
    fn new(inputs: usize, outputs: usize, has_bias: bool, place: &Place) -> Result<Self> {
        let adapter = place.adapter().map(|(lora, vb)| {
            let b = vb.get_with_hints((outputs, lora.rank), "lora_B.weight", Init::Const(0.))?;
            Result::Ok(Adapter {
                a: linear_no_bias(inputs, lora.rank, vb.pp("lora_A"))?,
                b: Linear::new(b, None),
                scale: lora.scale(),
                dropout: lora.dropout as f32,
            })
        });
        Ok(Self {
            base: linear_b(inputs, outputs, has_bias, place.base.clone())?,
            adapter: adapter.transpose()?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.base.forward(x)?;
        match &self.adapter {
            None => Ok(y),
            Some(adapter) => ops::add(&y, &adapter.forward(x)?.to_dtype(x.dtype())?),
        }
    }

    fn without_graph(&self) -> Self {
        let detached =
            |of: &Linear| Linear::new(of.weight().detach(), of.bias().map(Tensor::detach));
        let adapter = self.adapter.as_ref().map(|adapter| Adapter {
            a: detached(&adapter.a),
            b: detached(&adapter.b),
            dropout: 0.,
            ..*adapter
        });
        Self {
            base: detached(&self.base),
            adapter,
        }
    }
}

impl Adapter {
    /// In the adapter's own type.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = ops::dropout(&x.to_dtype(self.a.weight().dtype())?, self.dropout)?;
        self.b.forward(&(self.a.forward(&x)? * self.scale)?)
    }
}

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
    pub fn new(config: &Config, index: usize, place: &Place) -> Result<Self> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let (queries, keys) = config.widths();
        let (has_bias, mlp_bias) = (config.attention_bias, config.mlp_bias);
        let linear = |name, inputs, outputs, has_bias| {
            Projection::new(inputs, outputs, has_bias, &place.pp(name))
        };
        let norm = |name: &str, width| rms_norm(width, config.rms_norm_eps, place.base.pp(name));
        let norms = |[a, b]: [&str; 2], width| Result::Ok([norm(a, width)?, norm(b, width)?]);
        let head_norms = || norms(["self_attn.q_norm", "self_attn.k_norm"], config.head_dim);
        Ok(Self {
            index,
            head_dim: config.head_dim,
            window: (config.sliding_window).filter(|_| index >= config.max_window_layers),
            norms: norms(["input_layernorm", "post_attention_layernorm"], hidden)?,
            head_norms: config.norms_heads().then(head_norms).transpose()?,
            attention: [
                linear("self_attn.q_proj", hidden, queries, has_bias)?,
                linear("self_attn.k_proj", hidden, keys, has_bias)?,
                linear("self_attn.v_proj", hidden, keys, has_bias)?,
                linear("self_attn.o_proj", queries, hidden, config.output_bias())?,
            ],
            mlp: Arc::new([
                linear("mlp.gate_proj", hidden, inner, mlp_bias)?,
                linear("mlp.up_proj", hidden, inner, mlp_bias)?,
                linear("mlp.down_proj", inner, hidden, mlp_bias)?,
            ]),
            inner,
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
        let x = ops::add(x, &self.attend(&normed, positions, cache)?)?;
        let normed = before_mlp.forward(&x)?;
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
        let mut options = Attention::default().causal();
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

/// The bytes of one activation of a sample above which a perceptron is cut, since a trainer cuts batches, but no samples; and those of a tile, whose backward pass has about six at once:
/// what attention takes for scores on a GPU.
const LONG: usize = 256 << 20;

/// The tokens of a perceptron's tile, if a sample is so long, from its tokens and the bytes of an activation for each. A tile costs one more forward pass.
fn tile(tokens: usize, of_token: usize) -> Option<usize> {
    let is_long = tokens.saturating_mul(of_token) > LONG;
    is_long.then(|| (LONG / 6 / of_token.max(1)).max(1))
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
