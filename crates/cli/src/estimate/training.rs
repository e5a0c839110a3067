//! What training takes: all the time for parameters, gradients and optimizer state, and for a micro-batch with the layers of
//! `candle_headroom::nn`.
//!
//! Bytes of a micro-batch are `f64`: they are estimates, and no size overflows.

use clap::ValueEnum;
use serde::Serialize;

use super::model::{Config, Dtype, Shape, elements, sum};

/// Parameters with fewer elements keep f32 moments where others have 8 bits.
const FEW: u64 = 4096;
/// Elements of a block of 8-bit moments, which has one f32 besides.
const BLOCK: u64 = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Optimizer {
    Adamw,
    Lion,
    /// Without momentum
    Sgd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Moments {
    F32,
    Bf16,
    #[value(name = "8bit")]
    EightBit,
}

/// Adapters of low rank.
#[derive(Debug, Clone)]
pub struct Lora {
    pub rank: u64,
    /// Names of linear layers.
    pub targets: Vec<String>,
}

impl Lora {
    /// All linear layers.
    pub const ALL: &str = "all-linear";

    pub fn has(&self, layer: &str) -> bool {
        let mut targets = self.targets.iter();
        targets.any(|target| target == layer || target == Self::ALL)
    }

    /// Inputs and outputs of a block's layers that have adapters.
    pub fn layers(&self, config: &Config) -> impl Iterator<Item = (u64, u64)> {
        let layers = config.linear().into_iter();
        let layers = layers.filter(|layer| self.has(layer.0));
        layers.map(|(_, inputs, outputs, _)| (inputs, outputs))
    }
}

/// What is trained, and how.
#[derive(Debug, Clone)]
pub struct Training {
    pub dtype: Dtype,
    pub optimizer: Optimizer,
    pub moments: Moments,
    /// Whether a parameter of a half type has an f32 copy, which the updates move.
    pub has_master_weights: bool,
    pub lora: Option<Lora>,
    /// Shapes of the model's parameters.
    pub model: Vec<Shape>,
    /// Shapes of what is trained.
    pub trained: Vec<Shape>,
}

/// Bytes that are held, and for what.
#[derive(Debug, Serialize)]
pub struct Held {
    pub what: &'static str,
    pub bytes: u64,
}

impl Training {
    /// Of adapters, the model being frozen.
    pub fn with_adapters(&self, config: &Config, lora: Lora) -> Self {
        let of_block = lora
            .layers(config)
            .flat_map(|(inputs, outputs)| [vec![lora.rank, inputs], vec![outputs, lora.rank]]);
        let of_block: Vec<_> = of_block.collect();
        Self {
            trained: vec![of_block; config.layers as usize].concat(),
            lora: Some(lora),
            ..self.clone()
        }
    }

    /// The number of elements that are trained.
    pub fn trained(&self) -> u64 {
        sum(&self.trained, elements)
    }

    /// Bytes of a trained element: adapters are f32.
    pub fn trained_size(&self) -> u64 {
        match self.lora {
            Some(_) => Dtype::F32.size(),
            None => self.dtype.size(),
        }
    }

    /// What is held, and nothing that has no bytes.
    pub fn held(&self) -> Vec<Held> {
        let (model, trained) = (sum(&self.model, elements), self.trained());
        let (parameters, adapters) = match self.lora {
            Some(_) => ("frozen parameters", trained),
            None => ("parameters", 0),
        };
        let moments = match self.moments {
            Moments::F32 => "moments, f32",
            Moments::Bf16 => "moments, bf16",
            Moments::EightBit => "moments, 8 bits",
        };
        let copied = match self.has_master_weights && self.dtype.size() < 4 {
            true => trained,
            false => 0,
        };
        let held = [
            (parameters, model.saturating_mul(self.dtype.size())),
            ("adapters", adapters.saturating_mul(self.trained_size())),
            ("master weights, f32", copied.saturating_mul(4)),
            // Sums are f32, also of half types.
            ("accumulated gradients", trained.saturating_mul(4)),
            (moments, sum(&self.trained, |shape| self.state(shape))),
        ];
        let held = held.into_iter().filter(|(_, bytes)| *bytes > 0);
        held.map(|(what, bytes)| Held { what, bytes }).collect()
    }

    pub fn held_bytes(&self) -> u64 {
        let held = self.held().into_iter();
        held.fold(0, |sum, held| sum.saturating_add(held.bytes))
    }

    /// Bytes that the optimizer keeps for a parameter.
    fn state(&self, shape: &[u64]) -> u64 {
        let count = elements(shape);
        let moment = match self.moments {
            Moments::Bf16 => count.saturating_mul(2),
            Moments::EightBit if count >= FEW => count.saturating_add(4 * count.div_ceil(BLOCK)),
            _ => count.saturating_mul(4),
        };
        match self.optimizer {
            Optimizer::Adamw => moment.saturating_mul(2),
            Optimizer::Lion => moment,
            Optimizer::Sgd => 0,
        }
    }
}

/// How a step is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Way {
    #[serde(skip)]
    pub name: &'static str,
    /// Each block is computed again in the backward pass.
    pub recomputes: bool,
    /// By `linear_cross_entropy`, instead of all logits at once.
    pub without_logits: bool,
}

impl Way {
    pub const ALL: [Self; 4] = [
        Self::new("layers kept, linear_cross_entropy", false, true),
        Self::new("layers kept, logits", false, false),
        Self::new("blocks recomputed, linear_cross_entropy", true, true),
        Self::new("blocks recomputed, logits", true, false),
    ];

    const fn new(name: &'static str, recomputes: bool, without_logits: bool) -> Self {
        Self {
            name,
            recomputes,
            without_logits,
        }
    }
}

/// A decoder that is trained.
#[derive(Debug)]
pub struct Model<'a> {
    pub config: &'a Config,
    pub training: &'a Training,
    /// Tokens of a sample.
    pub length: u64,
    pub is_gpu: bool,
}

impl Model<'_> {
    /// The most bytes that a micro-batch takes at once.
    pub fn taken(&self, samples: u64, way: Way) -> f64 {
        let (training, size) = (self.training, self.size());
        let tokens = samples as f64 * self.length as f64;
        let blocks = self.config.layers as f64;
        let (block, input) = (tokens * self.kept_by_block(), tokens * self.width() * size);
        let mut within = self.within_block(tokens);
        let kept = match way.recomputes {
            true => {
                // What the second run keeps, besides the block's input.
                within += block - input;
                blocks * input
            }
            false => blocks * block,
        };
        // The embedded tokens and the last norm's output; tokens and targets.
        let kept = kept + 2. * input + 16. * tokens;
        let logits = match way.without_logits {
            true => 0.,
            false => tokens * self.vocabulary() * size,
        };
        let gradients = training.trained() as f64 * training.trained_size() as f64;
        let of_block = match training.lora {
            Some(_) => gradients / blocks,
            None => sum(&self.config.of_block(), elements) as f64 * size,
        };
        let table = self.table();
        // Those of the embedding come last, unless it is the last layer too.
        let awaited = if self.config.is_tied { 0. } else { table };
        // The first block is the last whose gradients are computed.
        let in_block = (gradients - of_block - awaited).max(0.) + within + 3. * of_block / 7.;
        // The embedding's are added to a copy.
        let backward = kept + logits + in_block.max(gradients + table);
        (kept + self.at_loss(tokens, way)).max(backward) + self.workspace(samples)
    }

    /// The largest micro-batch that takes no more than this; 0 if there is none, and `None` if it would have over a million samples.
    pub fn largest(&self, bytes: f64, way: Way) -> Option<u64> {
        let fits = |samples: u64| self.taken(samples, way) <= bytes;
        let (mut fitting, mut failing) = (0, 1 << 20);
        if fits(failing) {
            return None;
        }
        while failing - fitting > 1 {
            let middle = fitting.midpoint(failing);
            match fits(middle) {
                true => fitting = middle,
                false => failing = middle,
            }
        }
        Some(fitting)
    }

    /// Bytes of an element of the model.
    fn size(&self) -> f64 {
        self.training.dtype.size() as f64
    }

    fn is_half(&self) -> bool {
        self.size() < 4.
    }

    fn width(&self) -> f64 {
        self.config.width as f64
    }

    fn vocabulary(&self) -> f64 {
        self.config.vocabulary as f64
    }

    /// Bytes of the gradient of the embedding, which may also be the last layer; 0 if it is frozen.
    fn table(&self) -> f64 {
        match self.training.lora {
            Some(_) => 0.,
            None => self.vocabulary() * self.width() * self.size(),
        }
    }

    /// Bytes that the graph of a block keeps for each token.
    fn kept_by_block(&self) -> f64 {
        let (config, lora) = (self.config, self.training.lora.as_ref());
        let turned = 2. * (config.query_width() + config.key_width()) as f64;
        let inner = config.inner as f64;
        // The inputs and outputs of two norms, rotated queries and keys, values and the mix of them, gate and up.
        let mut kept = 4. * self.width() + turned + 2. * inner;
        if config.has_head_norms {
            kept += turned;
        }
        if lora.is_none_or(|lora| lora.has("down_proj")) {
            kept += inner;
        }
        // The first product, in f32. Adapters keep their input as it is.
        let of_adapters = lora.map_or(0., |lora| {
            4. * lora.rank as f64 * lora.layers(config).count() as f64
        });
        // Two f32 for each query and head.
        kept * self.size() + 8. * config.heads as f64 + of_adapters
    }

    /// Gradients within a block, while it is differentiated: those of the perceptron. On the CPU candle multiplies half types in f32.
    fn within_block(&self, tokens: f64) -> f64 {
        let (width, inner) = (self.width(), self.config.inner as f64);
        let mut within = self.size() * (3. * inner + 2. * width);
        if self.is_half() && !self.is_gpu {
            within += 4. * (inner + width);
        }
        tokens * within
    }

    /// Scores of attention, which exist for some queries at a time: on a GPU three chunks, on the CPU little.
    fn workspace(&self, samples: u64) -> f64 {
        let length = self.length as f64;
        let scores = samples as f64 * self.config.heads as f64 * length * length * self.size();
        match self.is_gpu {
            true => 3. * scores.min((64u64 << 20) as f64),
            false => 0.,
        }
    }

    /// What the loss takes, with its gradients: with all logits, or by `linear_cross_entropy`.
    fn at_loss(&self, tokens: f64, way: Way) -> f64 {
        let (vocabulary, size, table) = (self.vocabulary(), self.size(), self.table());
        if !way.without_logits {
            // The logits and their gradient, then those of the weight.
            let logits = tokens * vocabulary * size;
            let hidden = tokens * self.width() * size;
            let product = logits + hidden + table + self.converted(tokens);
            return logits + product.max(hidden + table);
        }
        let hidden = tokens * self.width() * 4.;
        let own = table * 4. / size;
        // On a GPU the logits of half types are rounded for the products.
        let logit = match self.is_half() && self.is_gpu {
            true => 4. + size,
            false => 4.,
        };
        let chunk = self.rows(tokens) * vocabulary * logit;
        let converted = if self.is_half() { own } else { 0. };
        hidden + (own + chunk).max(table + converted)
    }

    /// Copies for the last product's gradients on the CPU: of the logits' gradient for that of the weight, and for half types f32 ones of all
    /// operands.
    fn converted(&self, tokens: f64) -> f64 {
        let (vocabulary, width) = (self.vocabulary(), self.width());
        let logits = tokens * vocabulary;
        let turned = if self.table() > 0. { logits } else { 0. };
        match self.is_half() {
            _ if self.is_gpu => 0.,
            true => 4. * (turned + logits + tokens * width + vocabulary * width),
            false => 4. * turned,
        }
    }

    /// Rows of logits that are computed at a time, as `linear_cross_entropy` chooses them.
    fn rows(&self, tokens: f64) -> f64 {
        let rows = match &self.training.lora {
            None => self.width(),
            Some(_) => tokens * self.width() / self.vocabulary(),
        };
        let rows = rows
            .clamp(64., 512.)
            .max((1u64 << 18) as f64 / self.vocabulary());
        rows.log2().floor().exp2().min(tokens)
    }
}
