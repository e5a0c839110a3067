//! Samples as tensors.

use std::sync::Arc;

use anyhow::Result;
use candle_core::Tensor;
use candle_headroom::data::{Dataset, Loader, Pad};
use candle_headroom::distributed::Group;
use candle_headroom::error::BoxedError;

use super::samples::Sample;

/// The target of a token that is not learned.
pub const IGNORED: i64 = -100;

/// Batches whose samples are sorted by length, so that little is padded.
const SORTED: usize = 16;

/// Tokens as u32, and the next tokens as i64; each `(samples, time)`.
pub type Batch = (Tensor, Tensor);

struct Samples(Arc<Vec<Sample>>);

impl Dataset for Samples {
    type Sample = Sample;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> Result<Sample, BoxedError> {
        Ok(self.0.get(index).ok_or("no such sample")?.clone())
    }

    fn cost(&self, index: usize) -> usize {
        self.0.get(index).map_or(1, |sample| sample.tokens.len())
    }

    fn name(&self) -> String {
        "the data".to_owned()
    }
}

/// Loads this rank's part of batches of so many samples.
pub fn load(
    samples: &Arc<Vec<Sample>>,
    batch: usize,
    seed: u64,
    group: &Group,
) -> Result<Loader<Batch>> {
    let batch = batch.min(samples.len());
    let builder = Loader::builder(Samples(Arc::clone(samples)), |samples| collate(&samples))
        .batch(batch)
        .sort_by_cost(batch.saturating_mul(SORTED))
        .group(group)
        .shuffle(seed);
    Ok(builder.endless().build()?)
}

/// Pads samples at their ends. No token sees what comes after it, so no mask is needed.
pub fn collate(samples: &[Sample]) -> Result<Batch, BoxedError> {
    let inputs = samples.iter().map(|sample| {
        let seen = sample.tokens.len().saturating_sub(1);
        &sample.tokens[..seen]
    });
    let targets = samples.iter().map(|sample| {
        let next = sample.tokens.iter().enumerate().skip(1);
        let next = next.map(|(place, token)| match place < sample.given {
            true => IGNORED,
            false => i64::from(*token),
        });
        next.collect::<Vec<_>>()
    });
    let inputs = Pad::new(0u32).sequences(inputs.collect())?;
    let targets = Pad::new(IGNORED).sequences(targets.collect())?;
    Ok((inputs.values, targets.values))
}
