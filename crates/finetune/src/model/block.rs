use candle_core::{Result, Tensor};
use candle_headroom::nn::kv_cache::KvCache;
use candle_headroom::nn::{Module, RmsNorm, ops, rms_norm};

use super::attention::{Positions, SelfAttention};
use super::config::Config;
use super::mlp::Mlp;
use super::place::Place;
use super::spans::of_layer;
use super::view::View;

/// Attention and perceptron, each after a norm and beside what comes in.
#[derive(Clone)]
pub struct Block {
    index: usize,
    input_norm: RmsNorm,
    attention: SelfAttention,
    post_norm: RmsNorm,
    mlp: Mlp,
}

impl Block {
    pub fn new(config: &Config, index: usize, place: &Place) -> Result<Self> {
        let norm = |name| rms_norm(config.hidden_size, config.rms_norm_eps, place.base.pp(name));
        Ok(Self {
            index,
            input_norm: norm("input_layernorm")?,
            attention: SelfAttention::new(config, index, &place.pp("self_attn"))?,
            post_norm: norm("post_attention_layernorm")?,
            mlp: Mlp::new(config, &place.pp("mlp"))?,
        })
    }

    pub fn forward(
        &self,
        x: &Tensor,
        positions: &Positions,
        cache: Option<&mut KvCache>,
    ) -> Result<Tensor> {
        let _span = of_layer(self.index).entered();
        let normed = self.input_norm.forward(x)?;
        let x = ops::add(x, &self.attention.forward(&normed, positions, cache)?)?;
        let normed = self.post_norm.forward(&x)?;
        ops::add(&x, &self.mlp.forward(&normed)?)
    }
}

impl View for Block {
    fn without_graph(&self) -> Self {
        Self {
            index: self.index,
            input_norm: self.input_norm.without_graph(),
            attention: self.attention.without_graph(),
            post_norm: self.post_norm.without_graph(),
            mlp: self.mlp.without_graph(),
        }
    }
}
