//! What a micro-batch takes besides, with the layers of `candle_headroom::nn`.
//!
//! Bytes are `f64`: they are estimates, and no size overflows.

use serde::Serialize;

use super::model::{Config, elements, sum};
use super::training::Training;

/// How a step is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Way {
    /// Each block is computed again in the backward pass.
    pub recomputes: bool,
    /// By `linear_cross_entropy`, instead of all logits at once.
    pub without_logits: bool,
}

impl Way {
    pub const ALL: [Self; 4] = [
        Self::new(false, true),
        Self::new(false, false),
        Self::new(true, true),
        Self::new(true, false),
    ];

    const fn new(recomputes: bool, without_logits: bool) -> Self {
        Self {
            recomputes,
            without_logits,
        }
    }

    pub fn name(self) -> &'static str {
        match (self.recomputes, self.without_logits) {
            (false, true) => "layers kept, linear_cross_entropy",
            (false, false) => "layers kept, logits",
            (true, true) => "blocks recomputed, linear_cross_entropy",
            (true, false) => "blocks recomputed, logits",
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
        let of_adapters = lora.into_iter().flat_map(|lora| {
            lora.layers(config).map(|(inputs, outputs)| {
                // The first product and the scaled one, in f32.
                let kept = 4. * 2. * lora.rank as f64;
                match self.is_half() {
                    // The input, and the output before and after it is rounded.
                    true => kept + 4. * (inputs + outputs) as f64 + self.size() * outputs as f64,
                    false => kept,
                }
            })
        });
        // Two f32 for each query and head.
        kept * self.size() + 8. * config.heads as f64 + of_adapters.sum::<f64>()
    }

    /// Gradients within a block, while it is differentiated: those of the perceptron. Those of adapters are f32, and on the CPU candle
    /// multiplies half types in f32.
    fn within_block(&self, tokens: f64) -> f64 {
        let (width, inner) = (self.width(), self.config.inner as f64);
        let mut within = self.size() * (4. * inner + 2. * width);
        if self.is_half() && self.training.lora.is_some() {
            within += 2. * inner * 4.;
        }
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
            // The logits and their gradient, then candle's sum of the weight's gradient.
            let logits = tokens * vocabulary * size;
            let hidden = tokens * self.width() * size;
            let product = logits + hidden + table + self.converted(tokens);
            return logits + product.max(hidden + 3. * table);
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
        hidden + (own + chunk).max(3. * table + converted)
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
