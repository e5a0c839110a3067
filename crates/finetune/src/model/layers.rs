//! The layers of a decoder, each linear one perhaps with an adapter.

use candle_core::{Result, Tensor};
use candle_headroom::nn::kv_cache::KvCache;
use candle_headroom::nn::rotary_emb::rope_thd;
use candle_headroom::nn::{
    Attention, Init, Linear, Module, RmsNorm, VarBuilder, attention, init, ops, rms_norm,
};
use tracing::{Span, trace_span};

use super::config::Config;
use super::lora::Lora;

/// PEFT's name of the model that has adapters.
const PREFIX: &str = "base_model.model";

/// Where in a model a layer is: its parameters, and those of its adapter.
#[derive(Clone)]
pub struct Place<'a> {
    /// At this path.
    pub base: VarBuilder<'a>,
    adapters: Option<(&'a Lora, VarBuilder<'a>)>,
}

impl<'a> Place<'a> {
    pub fn new(base: VarBuilder<'a>, adapters: Option<(&'a Lora, VarBuilder<'a>)>) -> Self {
        let adapters = adapters.map(|(lora, adapters)| (lora, adapters.pp(PREFIX)));
        Self { base, adapters }
    }

    pub fn pp(&self, name: &str) -> Self {
        let adapters = self.adapters.as_ref();
        Self {
            base: self.base.pp(name),
            adapters: adapters.map(|(lora, adapters)| (*lora, adapters.pp(name))),
        }
    }

    /// The parameters of this layer's adapter, if it has one.
    pub fn adapter(&self) -> Option<(&'a Lora, &VarBuilder<'a>)> {
        let (lora, adapters) = self.adapters.as_ref()?;
        let path = adapters.prefix();
        let path = path.strip_prefix(PREFIX)?.trim_start_matches('.');
        lora.applies_to(path).then_some((*lora, adapters))
    }
}

/// A layer for evaluation: it shares its parameters with the trained one, keeps no graph, and drops nothing.
pub trait View {
    fn without_graph(&self) -> Self;
}

impl View for Tensor {
    fn without_graph(&self) -> Self {
        self.detach()
    }
}

impl View for Linear {
    fn without_graph(&self) -> Self {
        Linear::new(self.weight().detach(), self.bias().map(Tensor::detach))
    }
}

impl View for RmsNorm {
    fn without_graph(&self) -> Self {
        RmsNorm::new(self.weight().detach(), self.eps())
    }
}

impl<T: View> View for Option<T> {
    fn without_graph(&self) -> Self {
        self.as_ref().map(T::without_graph)
    }
}

impl<T: View> View for [T; 2] {
    fn without_graph(&self) -> Self {
        self.each_ref().map(T::without_graph)
    }
}

/// Implements [`View`] for layers of these parts.
macro_rules! view {
    ($($layer:ident: $($part:ident)+;)+) => {$(
        #[allow(clippy::needless_update, reason = "some have other fields too")]
        impl View for $layer {
            fn without_graph(&self) -> Self {
                Self { $($part: self.$part.without_graph(),)+ ..*self }
            }
        }
    )+};
}

view! {
    Projection: base adapter;
    SelfAttention: q k v o norms;
    Mlp: gate up down;
    Block: input_norm attention post_norm mlp;
}

/// A linear layer, perhaps with an adapter.
#[derive(Clone)]
pub struct Projection {
    base: Linear,
    adapter: Option<Adapter>,
}

#[derive(Clone)]
struct Adapter {
    /// (rank, inputs)
    a: Tensor,
    /// (outputs, rank)
    b: Tensor,
    scale: f64,
    dropout: f32,
}

impl Projection {
    pub fn new(inputs: usize, outputs: usize, has_bias: bool, place: &Place) -> Result<Self> {
        let (base, zeros) = (&place.base, Init::Const(0.));
        let shape = (outputs, inputs);
        let weight = base.get_with_hints(shape, "weight", init::DEFAULT_KAIMING_NORMAL)?;
        let bias = || base.get_with_hints(outputs, "bias", zeros);
        let bias = has_bias.then(bias).transpose()?;
        let adapter = place.adapter().map(|(lora, vb)| {
            let up = 1. / (inputs as f64).sqrt();
            let uniform = Init::Uniform { lo: -up, up };
            Result::Ok(Adapter {
                a: vb.get_with_hints((lora.rank, inputs), "lora_A.weight", uniform)?,
                b: vb.get_with_hints((outputs, lora.rank), "lora_B.weight", zeros)?,
                scale: lora.scale(),
                dropout: lora.dropout as f32,
            })
        });
        Ok(Self {
            base: Linear::new(weight, bias),
            adapter: adapter.transpose()?,
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.base.forward(x)?;
        match &self.adapter {
            None => Ok(y),
            Some(adapter) => ops::add(&y, &adapter.forward(x)?.to_dtype(x.dtype())?),
        }
    }
}

impl Adapter {
    /// In the adapter's own type.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = ops::dropout(&x.to_dtype(self.a.dtype())?, self.dropout)?;
        let inner = Linear::new(self.a.clone(), None).forward(&x)?;
        Linear::new(self.b.clone(), None).forward(&(inner * self.scale)?)
    }
}

impl View for Adapter {
    fn without_graph(&self) -> Self {
        Self {
            a: self.a.detach(),
            b: self.b.detach(),
            dropout: 0.,
            scale: self.scale,
        }
    }
}

/// Causal attention, in which query heads may share key heads.
#[derive(Clone)]
pub struct SelfAttention {
    head_dim: usize,
    window: Option<usize>,
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
            window: config.window(layer),
            q: projection("q_proj", hidden, queries, has_bias)?,
            k: projection("k_proj", hidden, keys, has_bias)?,
            v: projection("v_proj", hidden, keys, has_bias)?,
            o: projection("o_proj", queries, hidden, config.output_bias())?,
            norms: config.norms_heads().then(norms).transpose()?,
        })
    }

    /// `cos` and `sin` are the rotations of the positions.
    pub fn forward(
        &self,
        x: &Tensor,
        [cos, sin]: &[Tensor; 2],
        cache: Option<&mut KvCache>,
    ) -> Result<Tensor> {
        let _span = tracing::trace_span!("self_attn").entered();
        let (samples, time, _) = x.dims3()?;
        let heads = |of: &Projection| of.forward(x)?.reshape((samples, time, (), self.head_dim));
        let (mut q, mut k, v) = (heads(&self.q)?, heads(&self.k)?, heads(&self.v)?);
        if let Some([of_q, of_k]) = &self.norms {
            (q, k) = (of_q.forward(&q)?, of_k.forward(&k)?);
        }
        let q = rope_thd(&q, cos, sin)?.transpose(1, 2)?;
        let k = rope_thd(&k, cos, sin)?.transpose(1, 2)?;
        let v = v.transpose(1, 2)?;
        let (k, v) = match cache {
            None => (k, v),
            Some(cache) => cache.append(&k, &v)?,
        };
        let mut options = Attention::default().causal();
        if let Some(window) = self.window {
            options = options.window(window.saturating_sub(1), 0);
        }
        let mixed = attention(&q, &k, &v, &options)?.transpose(1, 2)?;
        self.o.forward(&mixed.reshape((samples, time, ()))?)
    }
}

/// down(silu(gate(x)) · up(x)) (Shazeer 2020, arXiv 2002.05202).
#[derive(Clone)]
pub struct Mlp {
    gate: Projection,
    up: Projection,
    down: Projection,
}

impl Mlp {
    pub fn new(config: &Config, place: &Place) -> Result<Self> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let projection = |name, inputs, outputs| {
            Projection::new(inputs, outputs, config.mlp_bias, &place.pp(name))
        };
        Ok(Self {
            gate: projection("gate_proj", hidden, inner)?,
            up: projection("up_proj", hidden, inner)?,
            down: projection("down_proj", inner, hidden)?,
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _span = tracing::trace_span!("mlp").entered();
        let inner = ops::silu_mul(&self.gate.forward(x)?, &self.up.forward(x)?)?;
        self.down.forward(&inner)
    }
}

/// Attention and perceptron, each after a norm and beside what comes in.
#[derive(Clone)]
pub struct Block {
    index: usize,
    input_norm: RmsNorm,
    attention: SelfAttention,
    post_norm: RmsNorm,
    mlp: Mlp,
}

impl Block {
    pub fn new(config: &Config, index: usize, place: &Place) -> Result<Self> {
        let norm = |name| rms_norm(config.hidden_size, config.rms_norm_eps, place.base.pp(name));
        Ok(Self {
            index,
            input_norm: norm("input_layernorm")?,
            attention: SelfAttention::new(config, index, &place.pp("self_attn"))?,
            post_norm: norm("post_attention_layernorm")?,
            mlp: Mlp::new(config, &place.pp("mlp"))?,
        })
    }

    pub fn forward(
        &self,
        x: &Tensor,
        rotations: &[Tensor; 2],
        cache: Option<&mut KvCache>,
    ) -> Result<Tensor> {
        let _span = of_layer(self.index).entered();
        let normed = self.input_norm.forward(x)?;
        let x = ops::add(x, &self.attention.forward(&normed, rotations, cache)?)?;
        let normed = self.post_norm.forward(&x)?;
        ops::add(&x, &self.mlp.forward(&normed)?)
    }
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
