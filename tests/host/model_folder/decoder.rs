//! A decoder of the Llama family, of the layers that `headroom estimate` assumes.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::nn::loss::{self, LinearCrossEntropy, linear_cross_entropy};
use candle_headroom::nn::rotary_emb::rope_thd;
use candle_headroom::nn::{Attention, Linear, Module, RmsNorm, attention, ops, recompute};

#[derive(Clone, Copy)]
pub struct Sizes {
    pub vocabulary: usize,
    pub width: usize,
    pub inner: usize,
    pub layers: usize,
    pub heads: usize,
    pub key_heads: usize,
    pub has_head_norms: bool,
    pub is_tied: bool,
    /// The rank of adapters on all linear layers, if the model is frozen.
    pub rank: Option<usize>,
    pub dtype: DType,
}

pub struct Decoder {
    pub vars: Vec<Var>,
    embedding: Tensor,
    blocks: Vec<Arc<Block>>,
    norm: RmsNorm,
    head: Tensor,
    rotations: [Tensor; 2],
}

struct Block {
    head: usize,
    norms: [RmsNorm; 2],
    head_norms: Option<[RmsNorm; 2]>,
    q: Projection,
    k: Projection,
    v: Projection,
    o: Projection,
    gate: Projection,
    up: Projection,
    down: Projection,
}

struct Projection {
    base: Linear,
    adapter: Option<[Linear; 2]>,
}

/// Makes parameters, and collects those that are trained.
struct Maker {
    sizes: Sizes,
    vars: Vec<Var>,
}

impl Maker {
    fn parameter(&mut self, shape: &[usize], dtype: DType, is_trained: bool) -> Result<Tensor> {
        let values = Tensor::randn(0f32, 0.02, shape, &Device::Cpu)?.to_dtype(dtype)?;
        if !is_trained {
            return Ok(values);
        }
        let var = Var::from_tensor(&values)?;
        self.vars.push(var.clone());
        Ok(var.into_inner())
    }

    fn of_model(&mut self, shape: &[usize]) -> Result<Tensor> {
        self.parameter(shape, self.sizes.dtype, self.sizes.rank.is_none())
    }

    fn norm(&mut self, width: usize) -> Result<RmsNorm> {
        Ok(RmsNorm::new(self.of_model(&[width])?, 1e-6))
    }

    fn projection(&mut self, inputs: usize, outputs: usize) -> Result<Projection> {
        let base = Linear::new(self.of_model(&[outputs, inputs])?, None);
        let Some(rank) = self.sizes.rank else {
            return Ok(Projection {
                base,
                adapter: None,
            });
        };
        let a = self.parameter(&[rank, inputs], DType::F32, true)?;
        let b = self.parameter(&[outputs, rank], DType::F32, true)?;
        let adapter = Some([a, b].map(|weight| Linear::new(weight, None)));
        Ok(Projection { base, adapter })
    }
}

impl Decoder {
    pub fn new(sizes: Sizes, length: usize) -> Result<Self> {
        let mut maker = Maker {
            sizes,
            vars: Vec::new(),
        };
        let (width, head) = (sizes.width, sizes.width / sizes.heads);
        let table = [sizes.vocabulary, width];
        let embedding = maker.of_model(&table)?;
        let head_weight = match sizes.is_tied {
            true => embedding.clone(),
            false => maker.of_model(&table)?,
        };
        let blocks = (0..sizes.layers).map(|_| Ok(Arc::new(Block::new(&mut maker, head)?)));
        let blocks = blocks.collect::<Result<_>>()?;
        let angles = (0..length * head / 2).map(|i| i as f32 / 7.);
        let angles = Tensor::from_iter(angles, &Device::Cpu)?.reshape((length, head / 2))?;
        Ok(Self {
            embedding,
            blocks,
            norm: maker.norm(width)?,
            head: head_weight,
            rotations: [
                angles.cos()?.to_dtype(sizes.dtype)?,
                angles.sin()?.to_dtype(sizes.dtype)?,
            ],
            vars: maker.vars,
        })
    }

    /// The mean loss of `(samples, time)` tokens.
    pub fn loss(&self, tokens: &Tensor, next: &Tensor, without_logits: bool) -> Result<Tensor> {
        let (samples, time) = tokens.dims2()?;
        let x = self.embedding.embedding(&tokens.flatten_all()?)?;
        let mut x = x.reshape((samples, time, ()))?;
        for block in &self.blocks {
            let (block, rotations) = (Arc::clone(block), self.rotations.clone());
            x = recompute(&x, move |x| block.forward(x, &rotations))?;
        }
        let hidden = self.norm.forward(&x)?;
        if without_logits {
            let options = LinearCrossEntropy::default();
            return linear_cross_entropy(&hidden, &self.head, next, &options);
        }
        let logits = Linear::new(self.head.clone(), None).forward(&hidden)?;
        loss::cross_entropy(&logits.flatten_to(1)?, &next.flatten_all()?)
    }
}

impl Block {
    fn new(maker: &mut Maker, head: usize) -> Result<Self> {
        let Sizes {
            width,
            inner,
            key_heads,
            has_head_norms,
            ..
        } = maker.sizes;
        let keys = key_heads * head;
        let mut norms = |width| Result::Ok([maker.norm(width)?, maker.norm(width)?]);
        Ok(Self {
            head,
            norms: norms(width)?,
            head_norms: has_head_norms.then(|| norms(head)).transpose()?,
            q: maker.projection(width, width)?,
            k: maker.projection(width, keys)?,
            v: maker.projection(width, keys)?,
            o: maker.projection(width, width)?,
            gate: maker.projection(width, inner)?,
            up: maker.projection(width, inner)?,
            down: maker.projection(inner, width)?,
        })
    }

    fn forward(&self, x: &Tensor, [cos, sin]: &[Tensor; 2]) -> Result<Tensor> {
        let (samples, time, _) = x.dims3()?;
        let normed = self.norms[0].forward(x)?;
        let heads = |of: &Projection| of.forward(&normed)?.reshape((samples, time, (), self.head));
        let (mut q, mut k, v) = (heads(&self.q)?, heads(&self.k)?, heads(&self.v)?);
        if let Some([of_q, of_k]) = &self.head_norms {
            (q, k) = (of_q.forward(&q)?, of_k.forward(&k)?);
        }
        let rotate = |x: &Tensor| rope_thd(x, cos, sin)?.transpose(1, 2);
        let causal = Attention::default().causal();
        let mixed = attention(&rotate(&q)?, &rotate(&k)?, &v.transpose(1, 2)?, &causal)?;
        let mixed = mixed.transpose(1, 2)?.reshape((samples, time, ()))?;
        let x = (x + self.o.forward(&mixed)?)?;
        let normed = self.norms[1].forward(&x)?;
        let gate = ops::silu(&self.gate.forward(&normed)?)?;
        x + self.down.forward(&(gate * self.up.forward(&normed)?)?)?
    }
}

impl Projection {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.base.forward(x)?;
        let Some([a, b]) = &self.adapter else {
            return Ok(y);
        };
        let inner = (a.forward(&x.to_dtype(DType::F32)?)? * 2.)?;
        y + b.forward(&inner)?.to_dtype(x.dtype())?
    }
}
