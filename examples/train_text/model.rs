//! A byte-level transformer language model of layers that keep little for the backward pass.

use candle_core::{Result, Tensor};
use candle_headroom::nn::loss::{LinearCrossEntropy, linear_cross_entropy};
use candle_headroom::nn::{
    Activation, Attention, Embedding, LayerNorm, Linear, Module, VarBuilder, attention, embedding,
    layer_norm, linear, ops, recompute,
};

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
    /// Whether each block is a region that a trainer may recompute; not at first.
    pub marks_blocks: bool,
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

impl Transformer {
    pub fn new(config: Config, vb: VarBuilder) -> Result<Self> {
        let Config { width, .. } = config;
        let blocks = 0..config.layers;
        Ok(Self {
            marks_blocks: false,
            tokens: embedding(VOCABULARY, width, vb.pp("tokens"))?,
            positions: embedding(config.context, width, vb.pp("positions"))?,
            blocks: blocks
                .map(|i| Block::new(config, vb.pp(format!("block{i}"))))
                .collect::<Result<_>>()?,
            norm: layer_norm(width, 1e-5, vb.pp("norm"))?,
            head: linear(width, VOCABULARY, vb.pp("head"))?,
        })
    }

    /// Scores of the next byte: `(samples, time)` of u32 to `(samples, time, VOCABULARY)`.
    pub fn forward(&self, bytes: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.hidden(bytes)?)
    }

    /// What the head is applied to: `(samples, time, width)`.
    fn hidden(&self, bytes: &Tensor) -> Result<Tensor> {
        let (_, time) = bytes.dims2()?;
        let positions = Tensor::arange(0u32, time as u32, bytes.device())?;
        let tokens = self.tokens.forward(bytes)?;
        let mut x = tokens.broadcast_add(&self.positions.forward(&positions)?)?;
        for block in &self.blocks {
            x = match self.marks_blocks {
                true => {
                    let block = block.clone(); // shares the parameters
                    recompute(&x, move |x| block.forward(x))?
                }
                false => block.forward(&x)?,
            };
        }
        self.norm.forward(&x)
    }

    /// The mean cross-entropy, in nats per byte. Its gradients are computed at once, without all scores: for evaluation, the
    /// cross-entropy of [`forward`](Self::forward) is faster.
    pub fn loss(&self, bytes: &Tensor, next: &Tensor) -> Result<Tensor> {
        let mut options = LinearCrossEntropy::default();
        if let Some(bias) = self.head.bias() {
            options = options.bias(bias);
        }
        linear_cross_entropy(&self.hidden(bytes)?, self.head.weight(), next, &options)
    }
}

#[derive(Clone)]
struct Block {
    heads: usize,
    attention_norm: LayerNorm,
    qkv: Linear,
    out: Linear,
    mlp_norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(config: Config, vb: VarBuilder) -> Result<Self> {
        let Config { width, heads, .. } = config;
        Ok(Self {
            heads,
            attention_norm: layer_norm(width, 1e-5, vb.pp("attention_norm"))?,
            qkv: linear(width, 3 * width, vb.pp("qkv"))?,
            out: linear(width, width, vb.pp("out"))?,
            mlp_norm: layer_norm(width, 1e-5, vb.pp("mlp_norm"))?,
            up: linear(width, 4 * width, vb.pp("up"))?,
            down: linear(4 * width, width, vb.pp("down"))?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = ops::add(x, &self.attend(&self.attention_norm.forward(x)?)?)?;
        let hidden = self.up.forward(&self.mlp_norm.forward(&x)?)?;
        let hidden = Activation::Relu.forward(&hidden)?;
        ops::add(&x, &self.down.forward(&hidden)?)
    }

    fn attend(&self, x: &Tensor) -> Result<Tensor> {
        let (samples, time, width) = x.dims3()?;
        let qkv = self.qkv.forward(x)?;
        let heads = self.heads;
        let qkv = qkv.reshape((samples, time, 3 * heads, width / heads))?;
        // Views: nothing is copied.
        let qkv = qkv.transpose(1, 2)?;
        let part = |i| qkv.narrow(1, i * heads, heads);
        let causal = Attention::default().causal();
        let mixed = attention(&part(0)?, &part(1)?, &part(2)?, &causal)?;
        let mixed = mixed.transpose(1, 2)?.reshape((samples, time, width))?;
        self.out.forward(&mixed)
    }
}
