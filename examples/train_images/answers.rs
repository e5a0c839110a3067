//! What the net says about the test images.

use anyhow::Result;
use candle_core::{D, Tensor};
use candle_headroom::AdaptiveTrainer;
use candle_headroom::nn::{ModuleT, ops};
use candle_headroom::optim::Commit;

use crate::digits::Batch;
use crate::model::Net;

/// The digit that the net sees in an image, and how sure it is, from 0 to 1.
#[derive(Clone, Copy)]
pub struct Answer {
    pub digit: u32,
    pub certainty: f32,
}

/// Asks for all images of a batch, as many at a time as fit without gradients. BatchNorm uses its running statistics.
pub fn answers<O: Commit>(
    trainer: &mut AdaptiveTrainer<O>,
    net: &Net,
    batch: &Batch,
) -> Result<Vec<Answer>> {
    let device = net.device();
    let chunks = trainer.evaluate(&batch.0, |images, _| {
        answer(net, &images.to_device(device)?)
    })?;
    Ok(chunks.results.concat())
}

fn answer(net: &Net, images: &Tensor) -> candle_core::Result<Vec<Answer>> {
    let chances = ops::softmax_last_dim(&net.forward_t(images, false)?)?;
    let digits = chances.argmax(D::Minus1)?.to_vec1()?;
    let certainties = chances.max(D::Minus1)?.to_vec1()?;
    let pairs = digits.into_iter().zip(certainties);
    Ok(pairs
        .map(|(digit, certainty)| Answer { digit, certainty })
        .collect())
}
