use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, bail};
use candle_headroom::nn::kv_cache::KvCache;
use candle_headroom::nn::loss::{LinearCrossEntropy, LossSum, linear_cross_entropy_sum};
use candle_headroom::nn::{
    Embedding, Init, Linear, Module, RmsNorm, VarBuilder, recompute, rms_norm,
};

use super::config::Config;
use super::layers::{Block, Place, View};
use super::lora::{LAYERS, Lora};
use super::rope::Rotations;

/// Keys and values of (samples, heads, time, width) grow along time.
const TIME: usize = 2;
/// Positions that a cache grows by.
const GROWTH: usize = 256;

/// A decoder of the Llama family. A clone shares the parameters.
#[derive(Clone)]
pub struct Decoder {
    /// Whether each block is a region that a trainer may recompute, and that any other loop does; at first it is.
    pub marks_blocks: bool,
    config: Arc<Config>,
    /// (vocabulary, hidden)
    embedding: Tensor,
    blocks: Vec<Arc<Block>>,
    norm: RmsNorm,
    /// (vocabulary, hidden); that of the embedding if they are tied.
    head: Tensor,
    rotations: Rotations,
}

impl Decoder {
    /// Makes a decoder of the parameters of `base`, under their names in transformers, for example
    /// `model.layers.0.self_attn.q_proj.weight`. With `lora`, `adapters` has the trained matrices under their names in PEFT, for
    /// example `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`; they may be of another type than the base.
    ///
    /// # Errors
    /// If sizes or options are out of range, if a target of adapters names no layer, and those of the `VarBuilder`s, for example
    /// if a parameter is missing or has another shape.
    pub fn new(
        config: &Config,
        base: VarBuilder,
        lora: Option<(&Lora, VarBuilder)>,
    ) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        if let Some((lora, _)) = &lora {
            lora.check(&paths(config))?;
        }
        let (dtype, device) = (base.dtype(), base.device().clone());
        let shape = (config.vocab_size, config.hidden_size);
        let stdev = config.initializer_range;
        let table = |name| base.get_with_hints(shape, name, Init::Randn { mean: 0., stdev });
        let embedding = table("model.embed_tokens.weight")?;
        let head = match config.tie_word_embeddings {
            true => embedding.clone(),
            false => table("lm_head.weight")?,
        };
        let norm = rms_norm(
            config.hidden_size,
            config.rms_norm_eps,
            base.pp("model.norm"),
        )?;
        let layers = Place::new(base, lora).pp("model.layers");
        let block = |index: usize| Block::new(config, index, &layers.pp(&index.to_string()));
        let blocks = (0..config.num_hidden_layers).map(|index| Ok(Arc::new(block(index)?)));
        Ok(Self {
            marks_blocks: true,
            blocks: blocks.collect::<Result<_>>()?,
            embedding,
            norm,
            head,
            rotations: Rotations::new(config, dtype, &device),
            config: Arc::new(config.clone()),
        })
    }

    pub fn device(&self) -> &Device {
        self.embedding.device()
    }

    /// Scores of the next token: `(samples, time)` of u32 to `(samples, time, vocabulary)`.
    pub fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        self.logits(&self.hidden(tokens)?)
    }

    /// What the last layer is applied to: `(samples, time)` of u32 to `(samples, time, hidden)`.
    pub fn hidden(&self, tokens: &Tensor) -> Result<Tensor> {
        let _span = tracing::trace_span!("model").entered();
        let (_, time) = tokens.dims2()?;
        let rotations = self.rotations(0, time)?;
        let mut x = self.embed(tokens)?;
        for block in &self.blocks {
            x = match self.marks_blocks {
                true => {
                    let (block, rotations) = (Arc::clone(block), rotations.clone());
                    recompute(&x, move |x| block.forward(x, &rotations, None))?
                }
                false => block.forward(&x, &rotations, None)?,
            };
        }
        self.norm.forward(&x)
    }

    /// The sum of the cross-entropies of `targets` `(samples, time)`, of u32 or i64, and the number of those that count: all but
    /// −100 and `u32::MAX`. With `weights` `(samples, time)`, each is multiplied by one, and their sum takes the place of the
    /// number.
    ///
    /// Its gradients are computed at once, without all logits; for evaluation, use that of [`evaluation`](Self::evaluation).
    pub fn loss_sum(
        &self,
        tokens: &Tensor,
        targets: &Tensor,
        weights: Option<&Tensor>,
    ) -> Result<LossSum> {
        let mut options = LinearCrossEntropy::default().ignore_index(-100);
        if let Some(weights) = weights {
            options = options.token_weights(weights);
        }
        linear_cross_entropy_sum(&self.hidden(tokens)?, &self.head, targets, &options)
    }

    /// The same decoder for evaluation: it shares the parameters, also later changes of them, keeps no graph, and drops nothing.
    pub fn evaluation(&self) -> Self {
        let blocks = self.blocks.iter().map(|block| block.without_graph());
        Self {
            embedding: self.embedding.detach(),
            blocks: blocks.map(Arc::new).collect(),
            norm: self.norm.without_graph(),
            head: self.head.detach(),
            ..self.clone()
        }
    }

    /// Continues a prompt by at most `most` tokens, up to the one at which `stop` says so, which is not returned, and to
    /// `max_position_embeddings` in all. `sampler` chooses a token by the logits `(vocabulary)`, f32. Each step computes its
    /// own token only: the keys and values of the earlier ones are cached.
    pub fn generate(
        &self,
        prompt: &[u32],
        most: usize,
        sampler: &mut impl FnMut(&Tensor) -> Result<u32>,
        stop: impl Fn(u32) -> bool,
    ) -> Result<Vec<u32>> {
        if prompt.is_empty() {
            bail!("there is no prompt to continue: give it at least one token")
        }
        let model = self.evaluation();
        let config = &*self.config;
        let room = config.max_position_embeddings.saturating_sub(prompt.len());
        let mut caches = vec![KvCache::new(TIME, GROWTH); config.num_hidden_layers];
        let mut made = Vec::new();
        let mut next = prompt.to_vec();
        while made.len() < most.min(room) {
            let tokens = Tensor::new(next.as_slice(), self.device())?.unsqueeze(0)?;
            let hidden = model.continued(&tokens, &mut caches)?;
            let last = hidden.narrow(1, next.len() - 1, 1)?;
            let logits = model.logits(&last)?.flatten_all()?.to_dtype(DType::F32)?;
            let token = sampler(&logits)?;
            if stop(token) {
                break;
            }
            made.push(token);
            next = vec![token];
        }
        Ok(made)
    }

    /// As [`hidden`](Self::hidden), for tokens that follow those of the caches, one for each block.
    fn continued(&self, tokens: &Tensor, caches: &mut [KvCache]) -> Result<Tensor> {
        let (_, time) = tokens.dims2()?;
        let earlier = caches.first().map_or(0, KvCache::current_seq_len);
        let rotations = self.rotations(earlier, time)?;
        let mut x = self.embed(tokens)?;
        for (block, cache) in self.blocks.iter().zip(caches) {
            x = block.forward(&x, &rotations, Some(cache))?;
        }
        self.norm.forward(&x)
    }

    fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        Linear::new(self.head.clone(), None).forward(hidden)
    }

    fn embed(&self, tokens: &Tensor) -> Result<Tensor> {
        Embedding::new(self.embedding.clone(), self.config.hidden_size).forward(tokens)
    }

    /// Those of positions that the model has.
    fn rotations(&self, first: usize, count: usize) -> Result<[Tensor; 2]> {
        let (most, positions) = (self.config.max_position_embeddings, first + count);
        if positions > most {
            bail!("{positions} tokens are more than `max_position_embeddings`, {most}")
        }
        self.rotations.of(first, count)
    }
}

/// The paths of all layers that can have adapters.
fn paths(config: &Config) -> Vec<String> {
    let paths = (0..config.num_hidden_layers).flat_map(|index| {
        LAYERS.map(|layer| {
            let part = match layer {
                "q_proj" | "k_proj" | "v_proj" | "o_proj" => "self_attn",
                _ => "mlp",
            };
            format!("model.layers.{index}.{part}.{layer}")
        })
    });
    paths.collect()
}
