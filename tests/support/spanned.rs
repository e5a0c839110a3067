//! A transformer whose layers have spans, as candle-transformers' models do: created with the layer, entered in each forward pass.

use candle_core::{Device, Result, Tensor};
use candle_headroom::nn::{
    self, Attention, Embedding, LayerNorm, Linear, Module, VarBuilder, attention, recompute,
};
use tracing::{Level, Span, span};

#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub vocabulary: usize,
    pub width: usize,
    pub heads: usize,
    pub blocks: usize,
}

impl Sizes {
    #[allow(dead_code, reason = "a benchmark has sizes of its own")]
    pub const SMALL: Self = Self {
        vocabulary: 64,
        width: 32,
        heads: 2,
        blocks: 3,
    };

    /// Text and the next tokens, of `(samples, time)` each.
    pub fn batch(&self, samples: usize, time: usize) -> Result<(Tensor, Tensor)> {
        let tokens = |shift: usize| {
            let tokens = (0..samples * time).map(|i| ((i * 31 + shift) % self.vocabulary) as u32);
            Tensor::from_iter(tokens, &Device::Cpu)?.reshape((samples, time))
        };
        Ok((tokens(0)?, tokens(7)?))
    }
}

pub struct Spanned {
    /// Whether each block is a region that a trainer may recompute.
    pub marks_blocks: bool,
    tokens: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
    span: Span,
    span_embedding: Span,
    span_norm: Span,
    span_head: Span,
    span_loss: Span,
}

#[derive(Clone)]
struct Block {
    attention: SelfAttention,
    mlp: Mlp,
    span: Span,
}

#[derive(Clone)]
struct SelfAttention {
    heads: usize,
    norm: LayerNorm,
    qkv: Linear,
    out: Linear,
    span: Span,
}

#[derive(Clone)]
struct Mlp {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
    span: Span,
}

impl Spanned {
    pub fn new(sizes: Sizes, vb: VarBuilder) -> Result<Self> {
        let Sizes {
            vocabulary,
            width,
            heads,
            blocks,
        } = sizes;
        let block = |number: usize| {
            let vb = vb.pp(format!("block{number}"));
            Ok(Block {
                attention: SelfAttention {
                    heads,
                    norm: nn::layer_norm(width, 1e-5, vb.pp("attn_norm"))?,
                    qkv: nn::linear(width, 3 * width, vb.pp("qkv"))?,
                    out: nn::linear(width, width, vb.pp("out"))?,
                    span: span!(Level::TRACE, "attn"),
                },
                mlp: Mlp {
                    norm: nn::layer_norm(width, 1e-5, vb.pp("mlp_norm"))?,
                    up: nn::linear(width, 4 * width, vb.pp("up"))?,
                    down: nn::linear(4 * width, width, vb.pp("down"))?,
                    span: span!(Level::TRACE, "mlp"),
                },
                span: span!(Level::TRACE, "block"),
            })
        };
        Ok(Self {
            marks_blocks: false,
            tokens: nn::embedding(vocabulary, width, vb.pp("tokens"))?,
            blocks: (0..blocks).map(block).collect::<Result<_>>()?,
            norm: nn::layer_norm(width, 1e-5, vb.pp("norm"))?,
            head: nn::linear(width, vocabulary, vb.pp("head"))?,
            span: span!(Level::TRACE, "model"),
            span_embedding: span!(Level::TRACE, "embedding"),
            span_norm: span!(Level::TRACE, "norm"),
            span_head: span!(Level::TRACE, "head"),
            span_loss: span!(Level::TRACE, "loss"),
        })
    }

    /// Scores of `(samples, time, vocabulary)`.
    pub fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let _entered = self.span.enter();
        let mut x = self
            .span_embedding
            .in_scope(|| self.tokens.forward(tokens))?;
        for block in &self.blocks {
            x = match self.marks_blocks {
                true => {
                    let block = block.clone();
                    recompute(&x, move |x| block.forward(x))?
                }
                false => block.forward(&x)?,
            };
        }
        let x = self.span_norm.in_scope(|| self.norm.forward(&x))?;
        self.span_head.in_scope(|| self.head.forward(&x))
    }

    /// The mean cross-entropy.
    pub fn loss(&self, tokens: &Tensor, next: &Tensor) -> Result<Tensor> {
        let scores = self.forward(tokens)?;
        let _entered = self.span_loss.enter();
        nn::loss::cross_entropy(&scores.flatten_to(1)?, &next.flatten_all()?)
    }
}

impl Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _entered = self.span.enter();
        let x = (x + self.attention.forward(x)?)?;
        &x + self.mlp.forward(&x)?
    }
}

impl SelfAttention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _entered = self.span.enter();
        let (samples, time, width) = x.dims3()?;
        let qkv = self.qkv.forward(&self.norm.forward(x)?)?;
        let qkv = qkv.reshape((samples, time, 3, self.heads, width / self.heads))?;
        let part = |i| qkv.narrow(2, i, 1)?.squeeze(2)?.transpose(1, 2);
        let mixed = attention(
            &part(0)?,
            &part(1)?,
            &part(2)?,
            &Attention::default().causal(),
        )?;
        self.out
            .forward(&mixed.transpose(1, 2)?.reshape((samples, time, width))?)
    }
}

impl Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _entered = self.span.enter();
        let hidden = self.up.forward(&self.norm.forward(x)?)?.gelu()?;
        self.down.forward(&hidden)
    }
}
