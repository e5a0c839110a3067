//! How parameters move.

use anyhow::Result;
use candle_core::DType;
use candle_headroom::optim::{Group, LossScale, ParamsAdamW};
use candle_headroom::{AdamW, LearningRate};

use crate::arguments::Arguments;
use crate::network::Network;

/// AdamW, whose weight decay leaves norms and biases alone.
pub fn optimizer(arguments: &Arguments, network: &Network, rates: &LearningRate) -> Result<AdamW> {
    let options = &arguments.training;
    let params = ParamsAdamW {
        lr: rates.at(0),
        weight_decay: options.weight_decay,
        ..ParamsAdamW::default()
    };
    let trained = Group::from(&network.trained);
    let (matrices, others) = trained.partition(|_, var| var.rank() > 1);
    let mut builder = AdamW::builder(matrices)
        .group(others.weight_decay(0.))
        .params(params)
        .moments(arguments.machine.moments);
    if options.clip > 0. {
        builder = builder.clip_norm(options.clip);
    }
    let dtype = arguments.dtype();
    // An adapter is f32 itself.
    if dtype != DType::F32 && network.lora.is_none() {
        builder = builder.master_weights();
    }
    if dtype == DType::F16 {
        builder = builder.loss_scale(LossScale::dynamic());
    }
    Ok(builder.build()?)
}
