//! What training holds all the time: parameters, gradients and optimizer state.

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
        let held = [
            (parameters, model.saturating_mul(self.dtype.size())),
            ("adapters", adapters.saturating_mul(self.trained_size())),
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
