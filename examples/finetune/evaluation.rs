//! The loss of data that is not learned.

use std::fmt;

use anyhow::{Context, Result};
use candle_headroom::distributed::Group;
use candle_headroom::{AdamW, AdaptiveTrainer};

use crate::data::{Sample, collate};
use crate::model::Decoder;

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
        let (mut sum, mut tokens) = (0., 0.);
        for samples in batches {
            let samples: Vec<_> = samples.iter().copied().cloned().collect();
            let batch = collate(&samples).map_err(anyhow::Error::from_boxed)?;
            let processed = trainer.evaluate(&batch, |(tokens, targets), _| {
                let tokens = tokens.to_device(decoder.device())?;
                let loss = decoder.loss_sum(&tokens, &targets, None)?;
                Ok((
                    f64::from(
                        loss.value
                            .to_dtype(candle_core::DType::F32)?
                            .to_scalar::<f32>()?,
                    ),
                    loss.weight,
                ))
            })?;
            for (of_chunk, weight) in processed.results {
                sum += of_chunk;
                tokens += weight;
            }
        }
        let mut all = (0., 0.);
        for part in group.gather(&serde_json::to_vec(&[sum, tokens])?)? {
            let [sum, tokens]: [f64; 2] = serde_json::from_slice(&part)
                .context("a rank sent no sum: its loss is not finite")?;
            all = (all.0 + sum, all.1 + tokens);
        }
        Ok(Self {
            loss: all.0 / all.1,
            tokens: all.1,
        })
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
