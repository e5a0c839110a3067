//! The shapes of candle's llama2-c model (260k, but a vocabulary of 4096, unless others are asked for), with the operations of candle's file or with ours.
#![allow(dead_code)] // each benchmark uses its own part

use std::sync::Arc;

use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_headroom::nn::loss::{LinearCrossEntropy, linear_cross_entropy};
use candle_headroom::{DeviceMemory, nn};
use candle_nn::{Embedding, Module, loss, ops};

pub const TIME: usize = SMALL.time;
const MIB: f64 = (1 << 20) as f64;
const EPSILON: f64 = 1e-5;

/// The sizes of a model.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub time: usize,
    pub width: usize,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub key_heads: usize,
    pub vocabulary: usize,
}

const SMALL: Sizes = Sizes {
    time: 64,
    width: 64,
    hidden: 768,
    layers: 5,
    heads: 8,
    key_heads: 4,
    vocabulary: 4096,
};

/// What candle's example trains: `Config::tiny_15m`.
pub const TINY_15M: Sizes = Sizes {
    time: 256,
    width: 288,
    hidden: 768,
    layers: 6,
    heads: 6,
    key_heads: 6,
    vocabulary: 32_000,
};

/// The parts of a block that exist with a lean backward pass and without.
pub trait Layers {
    fn linear(weight: &Tensor, x: &Tensor) -> Result<Tensor>;
    fn add(x: &Tensor, y: &Tensor) -> Result<Tensor>;
    fn norm(weight: &Tensor, x: &Tensor) -> Result<Tensor>;
    /// q `(samples, time, heads, size)`, k and v with fewer heads, to `(samples, time, width)`.
    fn attend(model: &Tables, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor>;
    /// silu(gate) · up, of weights that lie one after the other.
    fn gated(weights: &Gated, x: &Tensor) -> Result<Tensor>;
    fn cross_entropy(scores: &Tensor, targets: &Tensor) -> Result<Tensor>;
}

/// Tokens, and the ones that follow.
pub fn texts(samples: usize) -> Result<(Tensor, Tensor)> {
    let tokens = |shift: usize| {
        let tokens = (0..samples * TIME).map(|i| ((i + shift) * 31 % 4093) as u32);
        Tensor::from_iter(tokens, &Device::Cpu)?.reshape((samples, TIME))
    };
    Ok((tokens(0)?, tokens(1)?))
}

/// MiB for each sample: the slope of the peak between two batch sizes.
pub fn slope_of(
    memory: &DeviceMemory,
    loss: impl Fn(usize) -> Result<Tensor>,
) -> candle_headroom::Result<f64> {
    let peak = |samples| -> candle_headroom::Result<f64> {
        let scope = memory.peak_scope();
        loss(samples)?.backward()?;
        Ok((scope.peak().unwrap_or_default() - scope.start().unwrap_or_default()) as f64)
    };
    peak(8)?; // thread pools, and what else is allocated once
    let (few, many) = (8, 24);
    Ok((peak(many)? - peak(few)?) / (many - few) as f64 / MIB)
}

/// Constants of all blocks.
pub struct Tables {
    cos: Tensor,
    sin: Tensor,
    /// 1 where a position may not look.
    ahead: Tensor,
}

/// The first two matrices of a feed-forward layer: apart, and as one.
pub struct Gated {
    gate: Var,
    up: Var,
    both: Var,
}

struct Block {
    heads: usize,
    key_heads: usize,
    norm: Var,
    q: Var,
    k: Var,
    v: Var,
    out: Var,
    hidden_norm: Var,
    gated: Gated,
    down: Var,
}

pub struct Llama {
    tokens: Embedding,
    blocks: Vec<Arc<Block>>,
    norm: Var,
    head: Var,
    tables: Arc<Tables>,
}

impl Llama {
    /// The same weights in every model.
    pub fn new() -> Result<Self> {
        Self::on(&Device::Cpu, SMALL)
    }

    pub fn on(device: &Device, sizes: Sizes) -> Result<Self> {
        let (width, hidden) = (sizes.width, sizes.hidden);
        let few = width / sizes.heads * sizes.key_heads;
        let mut seed = 0u64;
        let mut weight = |shape: &[usize]| -> Result<Var> {
            seed += 1;
            let count = shape.iter().product::<usize>() as u64;
            let values = (0..count).map(|i| {
                let mixed = (i + seed * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (mixed >> 40) as f32 / (1u64 << 24) as f32 - 0.5
            });
            let values = Tensor::from_iter(values, device)?.reshape(shape)?;
            let scale = 2. / (shape[shape.len() - 1] as f64).sqrt();
            Var::from_tensor(&(values * scale)?)
        };
        let tokens = weight(&[sizes.vocabulary, width])?;
        let mut blocks = Vec::new();
        for _ in 0..sizes.layers {
            let (gate, up) = (weight(&[hidden, width])?, weight(&[hidden, width])?);
            let both = Var::from_tensor(&Tensor::cat(&[gate.as_tensor(), up.as_tensor()], 0)?)?;
            blocks.push(Arc::new(Block {
                heads: sizes.heads,
                key_heads: sizes.key_heads,
                norm: Var::ones(width, DType::F32, device)?,
                q: weight(&[width, width])?,
                k: weight(&[few, width])?,
                v: weight(&[few, width])?,
                out: weight(&[width, width])?,
                hidden_norm: Var::ones(width, DType::F32, device)?,
                gated: Gated { gate, up, both },
                down: weight(&[width, hidden])?,
            }));
        }
        let head = weight(&[sizes.vocabulary, width])?;
        let norm = Var::ones(width, DType::F32, device)?;
        Ok(Self {
            tokens: Embedding::new(tokens.as_tensor().clone(), width),
            blocks,
            norm,
            head,
            tables: Arc::new(Tables::new(device, sizes)?),
        })
    }

    fn hidden<L: Layers>(&self, bytes: &Tensor) -> Result<Tensor> {
        let mut x = self.tokens.forward(bytes)?;
        for block in &self.blocks {
            x = block.forward::<L>(&self.tables, &x)?;
        }
        L::norm(&self.norm, &x)
    }

    /// The mean loss without scores, with each block as a region.
    pub fn marked_loss(&self, tokens: &Tensor, next: &Tensor) -> Result<Tensor> {
        let mut x = self.tokens.forward(tokens)?;
        for block in &self.blocks {
            let (block, tables) = (Arc::clone(block), Arc::clone(&self.tables));
            x = nn::recompute(&x, move |x| block.forward::<Lean>(&tables, x))?;
        }
        let hidden = Lean::norm(&self.norm, &x)?;
        linear_cross_entropy(&hidden, &self.head, next, &LinearCrossEntropy::default())
    }

    /// All parameters that the lean layers use.
    pub fn vars(&self) -> Result<Vec<Var>> {
        let tokens = Var::from_tensor(self.tokens.embeddings())?;
        let blocks = self.blocks.iter().flat_map(|b| {
            let vars = [
                &b.norm,
                &b.q,
                &b.k,
                &b.v,
                &b.out,
                &b.hidden_norm,
                &b.gated.both,
                &b.down,
            ];
            vars.map(Var::clone)
        });
        Ok(blocks
            .chain([tokens, self.norm.clone(), self.head.clone()])
            .collect())
    }

    /// The mean loss of `(samples, TIME)` tokens.
    pub fn loss<L: Layers>(&self, tokens: &Tensor, next: &Tensor) -> Result<Tensor> {
        let scores = L::linear(&self.head, &self.hidden::<L>(tokens)?)?;
        L::cross_entropy(&scores.flatten_to(1)?, &next.flatten_all()?)
    }

    /// The same, without the scores.
    pub fn loss_without_scores<L: Layers>(&self, tokens: &Tensor, next: &Tensor) -> Result<Tensor> {
        let hidden = self.hidden::<L>(tokens)?;
        linear_cross_entropy(&hidden, &self.head, next, &LinearCrossEntropy::default())
    }

    /// The same, with the scores and their loss in parts, so that the gradients of all scores never exist at once.
    pub fn loss_in_parts<L: Layers>(&self, tokens: &Tensor, next: &Tensor) -> Result<Tensor> {
        const PARTS: usize = 4;
        let hidden = self.hidden::<L>(tokens)?.flatten_to(1)?;
        let rows = hidden.dim(0)?;
        let parts = hidden.chunk(PARTS, 0)?;
        let targets = next.flatten_all()?.chunk(PARTS, 0)?;
        let losses = parts.iter().zip(&targets).map(|(hidden, targets)| {
            let share = hidden.dim(0)? as f64 / rows as f64;
            L::cross_entropy(&L::linear(&self.head, hidden)?, targets)? * share
        });
        losses.reduce(|a, b| a? + b?).expect("parts")
    }
}

impl Block {
    fn forward<L: Layers>(&self, tables: &Tables, x: &Tensor) -> Result<Tensor> {
        let (samples, time, width) = x.dims3()?;
        let heads = |x: Tensor, heads| x.reshape((samples, time, heads, width / self.heads));
        let normed = L::norm(&self.norm, x)?;
        let q = heads(L::linear(&self.q, &normed)?, self.heads)?;
        let k = heads(L::linear(&self.k, &normed)?, self.key_heads)?;
        let v = heads(L::linear(&self.v, &normed)?, self.key_heads)?;
        let mixed = L::attend(tables, &q, &k, &v)?;
        let x = L::add(&L::linear(&self.out, &mixed)?, x)?;
        let hidden = L::gated(&self.gated, &L::norm(&self.hidden_norm, &x)?)?;
        L::add(&L::linear(&self.down, &hidden)?, &x)
    }
}

impl Tables {
    fn new(device: &Device, sizes: Sizes) -> Result<Self> {
        let (length, head) = (sizes.time, sizes.width / sizes.heads);
        let angles = (0..length).flat_map(|time| {
            (0..head / 2).map(move |i| {
                let rate = 10_000f32.powf((2 * i) as f32 / head as f32).recip();
                time as f32 * rate
            })
        });
        let angles = Tensor::from_iter(angles, device)?.reshape((length, head / 2))?;
        let ahead = (0..length).flat_map(|i| (0..length).map(move |j| u8::from(j > i)));
        Ok(Self {
            cos: angles.cos()?,
            sin: angles.sin()?,
            ahead: Tensor::from_iter(ahead, device)?.reshape((length, length))?,
        })
    }
}

/// Plain operations, as in candle's file with its fused norms replaced.
pub struct Composition;

impl Layers for Composition {
    fn linear(weight: &Tensor, x: &Tensor) -> Result<Tensor> {
        candle_nn::Linear::new(weight.clone(), None).forward(x)
    }

    fn add(x: &Tensor, y: &Tensor) -> Result<Tensor> {
        x + y
    }

    fn norm(weight: &Tensor, x: &Tensor) -> Result<Tensor> {
        candle_nn::RmsNorm::new(weight.clone(), EPSILON).forward_diff(x)
    }

    fn attend(tables: &Tables, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let (samples, time, heads, size) = q.dims4()?;
        let rotate = |x: &Tensor| -> Result<Tensor> {
            let (samples, time, heads, size) = x.dims4()?;
            let table = |t: &Tensor| {
                let t = t.reshape((time, 1, size / 2, 1))?;
                t.broadcast_as((samples, time, 1, size / 2, 1))
            };
            let (cos, sin) = (table(&tables.cos)?, table(&tables.sin)?);
            let pairs = x.reshape((samples, time, heads, size / 2, 2))?;
            let (a, b) = (pairs.narrow(4, 0, 1)?, pairs.narrow(4, 1, 1)?);
            let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
            let second = (a.broadcast_mul(&sin)? + b.broadcast_mul(&cos)?)?;
            Tensor::cat(&[first, second], D::Minus1)?.reshape((samples, time, heads, size))
        };
        let repeat = |x: &Tensor| -> Result<Tensor> {
            let (samples, time, few, size) = x.dims4()?;
            let times = heads / few;
            x.unsqueeze(3)?
                .expand((samples, time, few, times, size))?
                .reshape((samples, time, heads, size))
        };
        let by_head = |x: Tensor| x.transpose(1, 2)?.contiguous();
        let (q, k, v) = (
            by_head(rotate(q)?)?,
            by_head(repeat(&rotate(k)?)?)?,
            by_head(repeat(v)?)?,
        );
        let scores = (q.matmul(&k.t()?)? / (size as f64).sqrt())?;
        let ahead = tables.ahead.broadcast_as(scores.shape())?;
        let never = Tensor::new(f32::NEG_INFINITY, q.device())?.broadcast_as(scores.shape())?;
        let weights = ops::softmax(&ahead.where_cond(&never, &scores)?, D::Minus1)?;
        let mixed = weights.matmul(&v)?.transpose(1, 2)?;
        mixed.reshape((samples, time, heads * size))
    }

    fn gated(weights: &Gated, x: &Tensor) -> Result<Tensor> {
        let gate = Self::linear(&weights.gate, x)?;
        let silu = (&gate / (gate.neg()?.exp()? + 1.)?)?;
        silu * Self::linear(&weights.up, x)?
    }

    fn cross_entropy(scores: &Tensor, targets: &Tensor) -> Result<Tensor> {
        loss::cross_entropy(scores, targets)
    }
}

/// `candle_headroom::nn`.
pub struct Lean;

impl Layers for Lean {
    fn linear(weight: &Tensor, x: &Tensor) -> Result<Tensor> {
        nn::Linear::new(weight.clone(), None).forward(x)
    }

    fn add(x: &Tensor, y: &Tensor) -> Result<Tensor> {
        nn::ops::add(x, y)
    }

    fn norm(weight: &Tensor, x: &Tensor) -> Result<Tensor> {
        nn::ops::rms_norm(x, weight, EPSILON as f32)
    }

    fn attend(tables: &Tables, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let (samples, time, heads, size) = q.dims4()?;
        let (q, k) = (q.transpose(1, 2)?, k.transpose(1, 2)?);
        let (q, k) = nn::rotary_emb::rope_i_both(&q, &k, &tables.cos, &tables.sin)?;
        let mixed = nn::attention(
            &q,
            &k,
            &v.transpose(1, 2)?,
            &nn::Attention::default().causal(),
        )?;
        mixed
            .transpose(1, 2)?
            .reshape((samples, time, heads * size))
    }

    fn gated(weights: &Gated, x: &Tensor) -> Result<Tensor> {
        nn::ops::swiglu(&Self::linear(&weights.both, x)?)
    }

    fn cross_entropy(scores: &Tensor, targets: &Tensor) -> Result<Tensor> {
        nn::loss::cross_entropy(scores, targets)
    }
}
