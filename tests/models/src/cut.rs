//! Whether a trainer takes a model's loss for one that depends on the cut.

use crate::inputs::beginning_at;
use crate::models::{Forward, Model};
use crate::parameters::Parameters;
use crate::run::loss_of;
use candle_core::{DType, Tensor, Var};
use candle_headroom::{AdaptiveTrainer, Sgd};

/// What the trainer says of as many samples as memory is measured for. None for a model that takes one sample only.
pub fn check(
    model: &Model,
    parameters: &Parameters,
    forward: &mut Forward,
) -> candle_core::Result<Option<Result<String, String>>> {
    let samples = model.batches.1;
    if samples < 2 {
        return Ok(None);
    }
    let vars: Vec<Var> = parameters.vars().into_values().collect();
    let trainer = Sgd::builder(vars)
        .build()
        .and_then(|sgd| AdaptiveTrainer::builder(sgd).build());
    let mut trainer = trainer.map_err(candle_core::Error::wrap)?;
    // A model makes its inputs itself, of the samples that it is told.
    let batch = Tensor::zeros(samples, DType::U8, crate::inputs::device())?;
    let check = trainer.check_cut(&batch, |_, micro| {
        let (first, count) = (micro.samples.start, micro.samples.len());
        beginning_at(first, || loss_of(&forward(count)?))
    });
    Ok(Some(match check {
        Ok(check) => Ok(check.to_string()),
        Err(error) => Err(error.to_string()),
    }))
}
