//! The loss of data that is not learned.

use std::fmt;

use anyhow::Result;
use candle_core::DType;
use candle_headroom::distributed::Group;
use candle_headroom::{AdamW, AdaptiveTrainer, Error};

use crate::data::{Sample, collate};
use headroom_finetune::model::Decoder;

/// The mean loss of the learned tokens, in nats.
#[derive(Debug, Clone, Copy)]
pub struct Evaluation {
    pub loss: f64,
    pub tokens: f64,
}

impl Evaluation {
    /// Evaluates a decoder, which keeps no graph, in batches that fit. All ranks of a group call it, and each computes its part.
    pub fn of(
        decoder: &Decoder,
        samples: &[Sample],
        batch: usize,
        trainer: &mut AdaptiveTrainer<AdamW>,
        group: &Group,
    ) -> Result<Self> {
        let mut sorted: Vec<_> = samples.iter().collect();
        sorted.sort_by_key(|sample| sample.tokens.len());
        let batches = sorted
            .chunks(batch)
            .skip(group.rank())
            .step_by(group.size());
        let sums = || -> candle_headroom::Result<Vec<[f64; 2]>> {
            let mut sums = Vec::new();
            for samples in batches {
                let samples: Vec<_> = samples.iter().copied().cloned().collect();
                let batch = collate(&samples).map_err(Error::external)?;
                let processed = trainer.evaluate(&batch, |(tokens, targets), _| {
                    let tokens = tokens.to_device(decoder.device())?;
                    let loss = decoder.loss_sum(&tokens, &targets, None)?;
                    let sum = loss.value.to_dtype(DType::F32)?.to_scalar::<f32>()?;
                    Ok([f64::from(sum), loss.weight])
                })?;
                sums.extend(processed.results);
            }
            Ok(sums)
        };
        // Of all ranks in their order, and also where a loss is not finite.
        let (mut loss, mut tokens) = (0., 0.);
        for [of_chunk, weight] in group.collect(sums())? {
            loss += of_chunk;
            tokens += weight;
        }
        loss /= tokens;
        Ok(Self { loss, tokens })
    }

    /// The number of tokens among which the model is as undecided as among equally probable ones.
    pub fn perplexity(self) -> f64 {
        self.loss.exp()
    }
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { loss, tokens } = self;
        write!(
            f,
            "loss {loss:.4}, perplexity {:.2} on {tokens} held-out tokens",
            self.perplexity()
        )
    }
}
