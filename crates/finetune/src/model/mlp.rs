use candle_core::{Result, Tensor};
use candle_headroom::nn::ops;

use super::config::Config;
use super::place::Place;
use super::projection::Projection;
use super::view::View;

/// down(silu(gate(x)) · up(x)) (Shazeer 2020, arXiv 2002.05202).
#[derive(Clone)]
pub struct Mlp {
    gate: Projection,
    up: Projection,
    down: Projection,
}

impl Mlp {
    pub fn new(config: &Config, place: &Place) -> Result<Self> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let projection = |name, inputs, outputs| {
            Projection::new(inputs, outputs, config.mlp_bias, &place.pp(name))
        };
        Ok(Self {
            gate: projection("gate_proj", hidden, inner)?,
            up: projection("up_proj", hidden, inner)?,
            down: projection("down_proj", inner, hidden)?,
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _span = tracing::trace_span!("mlp").entered();
        let inner = ops::silu_mul(&self.gate.forward(x)?, &self.up.forward(x)?)?;
        self.down.forward(&inner)
    }
}

impl View for Mlp {
    fn without_graph(&self) -> Self {
        Self {
            gate: self.gate.without_graph(),
            up: self.up.without_graph(),
            down: self.down.without_graph(),
        }
    }
}
