//! What a micro-batch takes besides, with the layers of `candle_headroom::nn`.
//!
//! Bytes are `f64`: they are estimates, and no size overflows.

use serde::Serialize;

use super::config::Config;
use super::training::Training;
use super::weights::elements;

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
        Self {
            recomputes: false,
            without_logits: true,
        },
        Self {
            recomputes: false,
            without_logits: false,
        },
        Self {
            recomputes: true,
            without_logits: true,
        },
        Self {
            recomputes: true,
            without_logits: false,
        },
    ];

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
        let tokens = samples as f64 * self.length as f64;
        let (width, size) = (self.config.width as f64, self.size());
        let block = tokens * self.kept_by_block();
        let blocks = self.config.layers as f64;
        // The embedded tokens and the last norm's output; tokens and targets.
        let ends = tokens * (2. * width * size + 16.);
        let kept = ends
            + match way.recomputes {
                true => blocks * tokens * width * size,
                false => blocks * block,
            };
        let logits = match way.without_logits {
            true => 0.,
            false => tokens * self.config.vocabulary as f64 * size,
        };
        let gradients = self.training.trained() as f64 * self.training.trained_size() as f64;
        let table = self.table();
        let of_block = gradients_of_block(self.config, self.training);
        let mut within = self.within_block(tokens);
        if way.recomputes {
            // What the second run keeps, besides the block's input.
            within += block - tokens * width * size;
        }
        // Those of the embedding come last, unless it is the last layer too.
        let awaited = if self.config.is_tied { 0. } else { table };
        let last = [
            // The first block is the last whose gradients are computed.
            (gradients - of_block - awaited).max(0.) + within + 3. * of_block / 7.,
            // The embedding's are added to a copy.
            gradients + table,
        ];
        let backward = kept + logits + last.into_iter().fold(0., f64::max);
        (kept + self.at_loss(tokens, way)).max(backward) + self.workspace(samples)
    }

    /// The largest micro-batch that takes no more than this; 0 if there is none, and `None` if it would have over a million samples.
    pub fn largest(&self, bytes: f64, way: Way) -> Option<u64> {
        const MOST: u64 = 1 << 20;
        let fits = |samples: u64| self.taken(samples, way) <= bytes;
        let (mut fitting, mut failing) = (0, MOST);
        if fits(MOST) {
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
    pub fn size(&self) -> f64 {
        self.training.dtype.size_in_bytes() as f64
    }

    /// Bytes of the gradient of the embedding, which may also be the last layer; 0 if it is frozen.
    pub fn table(&self) -> f64 {
        match self.training.lora {
            Some(_) => 0.,
            None => self.config.vocabulary as f64 * self.config.width as f64 * self.size(),
        }
    }

    /// Bytes that the graph of a block keeps for each token.
    fn kept_by_block(&self) -> f64 {
        let config = self.config;
        let (width, inner, size) = (config.width as f64, config.inner as f64, self.size());
        let (queries, keys) = (config.query_width() as f64, config.key_width() as f64);
        // The inputs and outputs of two norms, rotated queries and keys, values and the mix of them, gate and up.
        let mut kept = 4. * width + 2. * queries + 2. * keys + 2. * inner;
        if config.has_head_norms {
            kept += 2. * (queries + keys);
        }
        let lora = self.training.lora.as_ref();
        if lora.is_none_or(|lora| lora.has("down_proj")) {
            kept += inner;
        }
        // Two f32 for each query and head.
        kept * size + 8. * config.heads as f64 + self.kept_by_adapters()
    }

    fn kept_by_adapters(&self) -> f64 {
        let Some(lora) = &self.training.lora else {
            return 0.;
        };
        let layers = self
            .config
            .linear()
            .into_iter()
            .filter(|layer| lora.has(layer.0));
        let kept = layers.map(|(_, inputs, outputs, _)| {
            let (inputs, outputs, rank) = (inputs as f64, outputs as f64, lora.rank as f64);
            // The first product and the scaled one, in f32.
            let kept = 4. * 2. * rank;
            match self.size() {
                // The input, and the output before and after it is rounded.
                size if size < 4. => kept + 4. * (inputs + outputs) + size * outputs,
                _ => kept,
            }
        });
        kept.sum()
    }

    /// Gradients within a block, while it is differentiated: those of the perceptron. Those of adapters are f32, and on the CPU candle
    /// multiplies half types in f32.
    fn within_block(&self, tokens: f64) -> f64 {
        let (width, inner) = (self.config.width as f64, self.config.inner as f64);
        let is_half = self.size() < 4.;
        let wide = match self.training.lora {
            Some(_) if is_half => 2. * inner * 4.,
            _ => 0.,
        };
        let converted = match is_half && !self.is_gpu {
            true => 4. * (inner + width),
            false => 0.,
        };
        tokens * (self.size() * (4. * inner + 2. * width) + wide + converted)
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
}

/// Bytes of the gradients of a block's parameters.
fn gradients_of_block(config: &Config, training: &Training) -> f64 {
    let all: u64 = config.of_block().iter().map(|shape| elements(shape)).sum();
    match &training.lora {
        Some(_) => (training.trained() / config.layers * training.trained_size()) as f64,
        None => (all * training.trained_size()) as f64,
    }
}
