//! What training holds all the time: parameters, gradients and optimizer state.

use candle_core::DType;
use clap::ValueEnum;

use super::config::Config;
use super::weights::elements;

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
    pub fn has(&self, layer: &str) -> bool {
        self.targets
            .iter()
            .any(|target| target == layer || target == "all-linear")
    }

    /// The shapes of all adapters.
    fn parameters(&self, config: &Config) -> Vec<Vec<u64>> {
        let layers = config
            .linear()
            .into_iter()
            .filter(|layer| self.has(layer.0));
        let of_block = layers.flat_map(|(_, inputs, outputs, _)| {
            [vec![self.rank, inputs], vec![outputs, self.rank]]
        });
        let of_block: Vec<_> = of_block.collect();
        (0..config.layers).flat_map(|_| of_block.clone()).collect()
    }
}

/// What is trained, and how.
#[derive(Debug, Clone)]
pub struct Training {
    pub dtype: DType,
    pub optimizer: Optimizer,
    pub moments: Moments,
    pub lora: Option<Lora>,
    /// Shapes of the model's parameters.
    model: Vec<Vec<u64>>,
    /// Shapes of what is trained.
    trained: Vec<Vec<u64>>,
}

impl Training {
    /// Of all parameters, which have these shapes.
    pub fn new(model: Vec<Vec<u64>>, dtype: DType, optimizer: Optimizer, moments: Moments) -> Self {
        let trained = model.clone();
        Self {
            dtype,
            optimizer,
            moments,
            lora: None,
            model,
            trained,
        }
    }

    /// Of adapters, the model being frozen.
    pub fn with_adapters(&self, config: &Config, lora: Lora) -> Self {
        Self {
            trained: lora.parameters(config),
            lora: Some(lora),
            ..self.clone()
        }
    }

    pub fn in_model(&self) -> u64 {
        sum(&self.model, elements)
    }

    pub fn trained(&self) -> u64 {
        sum(&self.trained, elements)
    }

    /// Bytes of a trained element: adapters are f32.
    pub fn trained_size(&self) -> u64 {
        match self.lora {
            Some(_) => DType::F32.size_in_bytes() as u64,
            None => self.dtype.size_in_bytes() as u64,
        }
    }

    /// What is held, with its bytes, and nothing that has none.
    pub fn held(&self) -> Vec<(String, u64)> {
        let model = self
            .in_model()
            .saturating_mul(self.dtype.size_in_bytes() as u64);
        let trained = self.trained();
        let (parameters, adapters) = match self.lora {
            Some(_) => (
                "frozen parameters",
                trained.saturating_mul(self.trained_size()),
            ),
            None => ("parameters", 0),
        };
        let moments = match self.moments {
            Moments::F32 => "moments, f32",
            Moments::Bf16 => "moments, bf16",
            Moments::EightBit => "moments, 8 bits",
        };
        let held = [
            (parameters, model),
            ("adapters", adapters),
            // Sums are f32, also of half types.
            ("accumulated gradients", trained.saturating_mul(4)),
            (moments, sum(&self.trained, |shape| self.state(shape))),
        ];
        let held = held.into_iter().filter(|(_, bytes)| *bytes > 0);
        held.map(|(what, bytes)| (what.to_owned(), bytes)).collect()
    }

    pub fn held_bytes(&self) -> u64 {
        let held = self.held().into_iter();
        held.fold(0, |sum, (_, bytes)| sum.saturating_add(bytes))
    }

    /// Bytes that the optimizer keeps for a parameter.
    fn state(&self, shape: &[u64]) -> u64 {
        let count = elements(shape);
        let times = |factor: u64| count.saturating_mul(factor);
        let moment = match self.moments {
            Moments::Bf16 => times(2),
            Moments::EightBit if count >= FEW => count.saturating_add(4 * count.div_ceil(BLOCK)),
            _ => times(4),
        };
        match self.optimizer {
            Optimizer::Adamw => moment.saturating_mul(2),
            Optimizer::Lion => moment,
            Optimizer::Sgd => 0,
        }
    }
}

fn sum(shapes: &[Vec<u64>], of: impl Fn(&[u64]) -> u64) -> u64 {
    shapes
        .iter()
        .fold(0, |sum, shape| sum.saturating_add(of(shape)))
}
