use std::sync::Arc;

use candle_core::{DType, Device, Error, Result, Tensor, bail};
use candle_headroom::nn::kv_cache::KvCache;
use candle_headroom::nn::lora::Lora;
use candle_headroom::nn::loss::{LinearCrossEntropy, LossSum, linear_cross_entropy_sum};
use candle_headroom::nn::{Module, RmsNorm, VarMap, recompute, rms_norm};

use super::base::Base;
use super::config::Config;
use super::layers::{Block, norm_without_graph};
use super::rope::{Positions, Rotations};
use super::table::Table;

/// Keys and values of (samples, heads, time, width) grow along time.
const TIME: usize = 2;
/// Positions that a cache grows by.
const GROWTH: usize = 256;

/// A decoder of the Llama family. A clone shares the parameters.
#[derive(Clone)]
pub struct Decoder {
    /// Whether each block is a region that a trainer may recompute, and that any other loop does; at first it is.
    pub marks_blocks: bool,
    config: Config,
    embedding: Table,
    blocks: Vec<Arc<Block>>,
    norm: RmsNorm,
    /// That of the embedding if they are tied.
    head: Table,
    rotations: Rotations,
}

impl Decoder {
    /// Makes a decoder of the parameters of `base`, under their names in transformers, for example
    /// `model.layers.0.self_attn.q_proj.weight`. With adapters, the trained matrices are in their `VarMap`, in f32, under their names in
    /// PEFT, for example `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`.
    ///
    /// # Errors
    /// If sizes or options are out of range, if a target of adapters names no layer, and those of the `VarBuilder`, for example
    /// if a parameter is missing or has another shape.
    pub fn new<'a>(
        config: &Config,
        base: impl Into<Base<'a>>,
        adapters: Option<(&Lora, &VarMap)>,
    ) -> Result<Self> {
        config.check().map_err(Error::msg)?;
        let base = base.into();
        let Some((lora, vars)) = adapters else {
            return Self::build(config, &base);
        };
        // Before anything is loaded.
        let of_block = |block| {
            let layers = config.linear_layers();
            layers.map(|layer| format!("model.layers.{block}.{}", layer.name))
        };
        let paths: Vec<_> = (0..config.num_hidden_layers).flat_map(of_block).collect();
        lora.choose(&paths.iter().map(String::as_str).collect::<Vec<_>>())?;
        let (decoder, _) = lora.attach(vars, || Self::build(config, &base))?;
        Ok(decoder)
    }

    fn build(config: &Config, base: &Base) -> Result<Self> {
        let vb = &base.vb;
        let embedding = base.table("model.embed_tokens", config)?;
        let head = match config.tie_word_embeddings {
            true => embedding.clone(),
            false => base.table("lm_head", config)?,
        };
        let (width, eps) = (config.hidden_size, config.rms_norm_eps);
        let norm = rms_norm(width, eps, vb.pp("model.norm"))?;
        let rotations = Rotations::new(config, vb.dtype(), vb.device())?;
        let block = |index| Result::Ok(Arc::new(Block::new(config, index, base)?));
        let blocks = (0..config.num_hidden_layers).map(block);
        Ok(Self {
            marks_blocks: true,
            blocks: blocks.collect::<Result<_>>()?,
            embedding,
            norm,
            head,
            rotations,
            config: config.clone(),
        })
    }

    pub fn device(&self) -> &Device {
        self.norm.weight().device()
    }

    /// Scores of the next token: `(samples, time)` of u32 to `(samples, time, vocabulary)`.
    pub fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        self.logits(&self.hidden(tokens)?)
    }

    /// What the last layer is applied to: `(samples, time)` of u32 to `(samples, time, hidden)`.
    pub fn hidden(&self, tokens: &Tensor) -> Result<Tensor> {
        self.continued(tokens, None, &mut [])
    }

    /// The sum of the cross-entropies of `targets` `(samples, time)`, of u32 or i64, and the number of those that count: all but
    /// −100 and `u32::MAX`.
    ///
    /// Its gradients are computed at once, without all logits; for evaluation, use that of [`evaluation`](Self::evaluation).
    pub fn loss_sum(&self, tokens: &Tensor, targets: &Tensor) -> Result<LossSum> {
        self.loss_of(&self.hidden(tokens)?, targets)
    }

    fn loss_of(&self, hidden: &Tensor, targets: &Tensor) -> Result<LossSum> {
        let options = LinearCrossEntropy::default().ignore_index(-100);
        linear_cross_entropy_sum(hidden, self.head.classes(), targets, &options)
    }

    /// [`loss_sum`](Self::loss_sum) of samples that hold several texts, of which each token sees those of its own: as if each were alone.
    /// `starts` (samples, time), of u8 on the CPU, is 1 where a text begins after another one.
    pub fn loss_sum_of_texts(
        &self,
        tokens: &Tensor,
        targets: &Tensor,
        starts: &Tensor,
    ) -> Result<LossSum> {
        let hidden = self.continued(tokens, Some(starts), &mut [])?;
        self.loss_of(&hidden, targets)
    }

    /// The same decoder for evaluation: it shares the parameters, also later changes of them, keeps no graph, and drops nothing.
    pub fn evaluation(&self) -> Self {
        let blocks = self.blocks.iter().map(|block| block.without_graph());
        Self {
            embedding: self.embedding.without_graph(),
            blocks: blocks.map(Arc::new).collect(),
            norm: norm_without_graph(&self.norm),
            head: self.head.without_graph(),
            ..self.clone()
        }
    }

    /// Continues a prompt by the most probable tokens, at most `most`, up to the one at which `stop` says so, which is not returned, and
    /// to `max_position_embeddings` in all. Each step computes its own token only: the keys and values of the earlier ones are cached.
    pub fn generate(
        &self,
        prompt: &[u32],
        most: usize,
        stop: impl Fn(u32) -> bool,
    ) -> Result<Vec<u32>> {
        if prompt.is_empty() {
            bail!("there is no prompt to continue: give it at least one token")
        }
        let model = self.evaluation();
        let positions = self.config.max_position_embeddings;
        let most = most.min(positions.saturating_sub(prompt.len()));
        let mut caches = vec![KvCache::new(TIME, GROWTH); self.blocks.len()];
        let (mut made, mut next) = (Vec::new(), prompt.to_vec());
        while made.len() < most {
            let tokens = Tensor::new(next.as_slice(), self.device())?.unsqueeze(0)?;
            let hidden = model.continued(&tokens, None, &mut caches)?;
            let last = hidden.narrow(1, next.len() - 1, 1)?;
            let logits = model.logits(&last)?.flatten_all()?.to_dtype(DType::F32)?;
            let token = logits.argmax(0)?.to_scalar()?;
            if stop(token) {
                break;
            }
            made.push(token);
            next = vec![token];
        }
        Ok(made)
    }

    /// As [`hidden`](Self::hidden), for tokens that follow those of the caches, one for each block. Without caches nothing comes before. Where
    /// texts start, they do not see each other.
    fn continued(
        &self,
        tokens: &Tensor,
        starts: Option<&Tensor>,
        caches: &mut [KvCache],
    ) -> Result<Tensor> {
        let _span = tracing::trace_span!("model").entered();
        let (samples, time) = tokens.dims2()?;
        let earlier = caches.first().map_or(0, KvCache::current_seq_len);
        let (most, positions) = (self.config.max_position_embeddings, earlier + time);
        if positions > most {
            bail!("{positions} tokens are more than `max_position_embeddings`, {most}")
        }
        let positions = match starts {
            Some(starts) => self.rotations.of_texts(starts)?,
            None => Positions {
                rotations: self.rotations.of(earlier, time)?,
                texts: Vec::new(),
                time,
            },
        };
        let mut x = self.embedding.embed(tokens, self.norm.weight().dtype())?;
        if starts.is_some() {
            x = x.reshape((1, samples * time, ()))?;
        }
        for (index, block) in self.blocks.iter().enumerate() {
            x = match caches.get_mut(index) {
                None if self.marks_blocks => {
                    let (block, positions) = (Arc::clone(block), positions.clone());
                    recompute(&x, move |x| block.forward(x, &positions, None))?
                }
                cache => block.forward(&x, &positions, cache)?,
            };
        }
        self.norm.forward(&x)?.reshape((samples, time, ()))
    }

    fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.head.logits(hidden)
    }
}
