//! Records as tokens, and as tensors.

use std::borrow::Borrow;
use std::fmt;

use anyhow::Result;
use candle_core::Tensor;
use candle_headroom::data::{Dataset, Loader, Pad};
use candle_headroom::distributed::Group;
use candle_headroom::error::BoxedError;
use rayon::prelude::*;

use super::records::Record;
use crate::vocabulary::Vocabulary;

/// The target of a token that is not learned.
const IGNORED: i64 = -100;

/// Batches whose samples are sorted by length, so that little is padded.
const SORTED: usize = 16;

/// Most tokens of a text that are continued.
const BEGINNING: usize = 16;

/// Tokens, of which all but the first ones are learned.
#[derive(Debug, Clone)]
pub struct Sample {
    pub tokens: Vec<u32>,
    /// Number of tokens at the beginning that are given; at least 1.
    pub given: usize,
}

impl Sample {
    /// The tokens that a text may be continued from: the prompt, or the first ones of a text.
    pub fn beginning(&self) -> Vec<u32> {
        let of_text = BEGINNING.min(self.tokens.len() - 1);
        let given = if self.given > 1 { self.given } else { of_text };
        self.tokens[..given].to_vec()
    }
}

/// Numbers of samples that were too long, and of those that were left out.
#[derive(Debug, Default)]
pub struct Cut {
    prompts: usize,
    completions: usize,
    pairs: usize,
}

/// Makes samples of records, each of at most `context` tokens and the one that comes next. Texts are joined, each with its end, and cut;
/// a sample begins with the last token of the one before, so that every token is learned once.
pub fn encode(
    records: &[Record],
    vocabulary: &Vocabulary,
    context: usize,
    cut: &mut Cut,
) -> Result<Vec<Sample>> {
    let encoded: Result<Vec<_>> = records
        .par_iter()
        .map(|record| vocabulary.tokens_of(record.prompt.as_deref(), &record.text))
        .collect();
    let (mut samples, mut stream) = (Vec::new(), Vec::new());
    let most = context + 1;
    for (record, (tokens, given)) in records.iter().zip(encoded?) {
        match record.prompt {
            None => stream.extend(tokens),
            Some(_) => {
                let begin = vocabulary.begin.len();
                samples.extend(cut.fit(tokens, (begin, given), most));
            }
        }
    }
    let starts = (0..stream.len().saturating_sub(1)).step_by(context.max(1));
    samples.extend(starts.map(|start| Sample {
        tokens: stream[start..stream.len().min(start + most)].to_vec(),
        given: 1,
    }));
    Ok(samples)
}

impl Cut {
    /// Shortens a pair to so many tokens: first the prompt loses its beginning, but not what begins every text, then the completion its end.
    fn fit(
        &mut self,
        mut tokens: Vec<u32>,
        (begin, given): (usize, usize),
        most: usize,
    ) -> Option<Sample> {
        let mut given = given.max(1); // nothing comes before the first token
        let kept = begin.max(1).min(given);
        let spare = tokens.len().saturating_sub(most).min(given - kept);
        if spare > 0 {
            self.prompts += 1;
            tokens.drain(begin.min(given - spare)..begin.min(given - spare) + spare);
            given -= spare;
        }
        if tokens.len() > most {
            self.completions += 1;
            tokens.truncate(most);
        }
        if given >= tokens.len() {
            self.pairs += 1;
            return None;
        }
        Some(Sample { tokens, given })
    }
}

/// Nothing, if all samples fit.
impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            ("prompts without their beginning", self.prompts),
            ("completions without their end", self.completions),
            ("pairs with nothing to learn", self.pairs),
        ];
        let mut found = counts.into_iter().filter(|(_, count)| *count > 0);
        found.try_for_each(|(what, count)| write!(f, "; {what}: {count}"))
    }
}

/// Tokens as u32, and the next tokens as i64; each `(samples, time)`.
pub type Batch = (Tensor, Tensor);

struct Samples(Vec<Sample>);

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
}

/// Loads this rank's part of batches of so many samples.
pub fn load(samples: Vec<Sample>, batch: usize, seed: u64, group: &Group) -> Result<Loader<Batch>> {
    let batch = batch.min(samples.len());
    let builder = Loader::builder(Samples(samples), |samples| collate(&samples))
        .batch(batch)
        .sort_by_cost(batch.saturating_mul(SORTED))
        .group(group)
        .name("the data")
        .shuffle(seed);
    Ok(builder.endless().build()?)
}

/// Pads samples at their ends. No token sees what comes after it, so no mask is needed.
pub fn collate(samples: &[impl Borrow<Sample>]) -> Result<Batch, BoxedError> {
    let samples = samples.iter().map(Borrow::borrow);
    let inputs = samples.clone().map(|sample: &Sample| {
        let seen = sample.tokens.len().saturating_sub(1);
        &sample.tokens[..seen]
    });
    let targets = samples.map(|sample| {
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
