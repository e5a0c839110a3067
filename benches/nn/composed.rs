//! A byte-level transformer language model, every operation of which has a backward pass.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{Embedding, Linear, Module, VarBuilder, embedding, linear, ops};

/// Bytes are the vocabulary.
pub const VOCABULARY: usize = 256;

#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Longest text, in bytes.
    pub context: usize,
    pub width: usize,
    pub heads: usize,
    pub layers: usize,
}

pub struct Transformer {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: Norm,
    head: Linear,
}

impl Transformer {
    pub fn new(config: Config, vb: VarBuilder) -> Result<Self> {
        let Config { width, .. } = config;
        let blocks = 0..config.layers;
        Ok(Self {
            tokens: embedding(VOCABULARY, width, vb.pp("tokens"))?,
            positions: embedding(config.context, width, vb.pp("positions"))?,
            blocks: blocks
                .map(|i| Block::new(config, vb.pp(format!("block{i}"))))
                .collect::<Result<_>>()?,
            norm: Norm::new(width, vb.pp("norm"))?,
            head: linear(width, VOCABULARY, vb.pp("head"))?,
        })
    }

    /// Scores of the next byte: `(samples, time)` of u32 to `(samples, time, VOCABULARY)`.
    pub fn forward(&self, bytes: &Tensor) -> Result<Tensor> {
        let (_, time) = bytes.dims2()?;
        let positions = Tensor::arange(0u32, time as u32, bytes.device())?;
        let tokens = self.tokens.forward(bytes)?;
        let mut x = tokens.broadcast_add(&self.positions.forward(&positions)?)?;
        let mask = causal_mask(time, x.dtype(), x.device())?;
        for block in &self.blocks {
            x = block.forward(&x, &mask)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }

    /// The mean cross-entropy, in nats per byte.
    pub fn loss(&self, bytes: &Tensor, next: &Tensor) -> Result<Tensor> {
        let scores = self.forward(bytes)?.flatten_to(1)?;
        candle_nn::loss::cross_entropy(&scores, &next.flatten_all()?)
    }
}

/// 0 where a position may look, minus infinity where it may not.
fn causal_mask(time: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let values = (0..time).flat_map(|i| (0..time).map(move |j| (j > i, 0f32)));
    let values = values.map(|(ahead, zero)| if ahead { f32::NEG_INFINITY } else { zero });
    Tensor::from_iter(values, device)?
        .reshape((time, time))?
        .to_dtype(dtype)
}

struct Block {
    heads: usize,
    attention_norm: Norm,
    qkv: Linear,
    out: Linear,
    mlp_norm: Norm,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(config: Config, vb: VarBuilder) -> Result<Self> {
        let Config { width, heads, .. } = config;
        Ok(Self {
            heads,
            attention_norm: Norm::new(width, vb.pp("attention_norm"))?,
            qkv: linear(width, 3 * width, vb.pp("qkv"))?,
            out: linear(width, width, vb.pp("out"))?,
            mlp_norm: Norm::new(width, vb.pp("mlp_norm"))?,
            up: linear(width, 4 * width, vb.pp("up"))?,
            down: linear(4 * width, width, vb.pp("down"))?,
        })
    }

    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let x = (x + self.attend(&self.attention_norm.forward(x)?, mask)?)?;
        let hidden = self.up.forward(&self.mlp_norm.forward(&x)?)?.relu()?;
        x + self.down.forward(&hidden)?
    }

    fn attend(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (samples, time, width) = x.dims3()?;
        let size = width / self.heads;
        let qkv = self.qkv.forward(x)?;
        let qkv = qkv.reshape((samples, time, 3, self.heads, size))?;
        let part = |i| {
            qkv.narrow(2, i, 1)?
                .squeeze(2)?
                .transpose(1, 2)?
                .contiguous()
        };
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let scores = (q.matmul(&k.t()?)? / (size as f64).sqrt())?;
        // Not `softmax_last_dim`: it has no backward pass.
        let weights = ops::softmax(&scores.broadcast_add(mask)?, D::Minus1)?;
        let mixed = weights.matmul(&v)?.transpose(1, 2)?;
        self.out.forward(&mixed.reshape((samples, time, width))?)
    }
}

/// Layer norm of plain operations: `candle_nn::LayerNorm` takes a fused path without a backward pass.
struct Norm {
    weight: Tensor,
    bias: Tensor,
}

impl Norm {
    fn new(width: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            weight: vb.get_with_hints(width, "weight", candle_nn::Init::Const(1.))?,
            bias: vb.get_with_hints(width, "bias", candle_nn::Init::Const(0.))?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::layer_norm_slow(x, &self.weight, &self.bias, 1e-5)
    }
}
