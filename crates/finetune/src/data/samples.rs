//! Records as tokens.

use std::fmt;

use anyhow::Result;
use rayon::prelude::*;

use super::records::Record;
use crate::vocabulary::Vocabulary;

/// Tokens, of which all but the first ones are learned.
#[derive(Debug, Clone)]
pub struct Sample {
    pub tokens: Vec<u32>,
    /// Number of tokens at the beginning that are given; at least 1.
    pub given: usize,
}

impl Sample {
    /// The number of tokens that are learned.
    pub fn learned(&self) -> usize {
        self.tokens.len() - self.given
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
                let begin = vocabulary.begin().len();
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
        if self.prompts > 0 {
            write!(f, "; prompts without their beginning: {}", self.prompts)?;
        }
        if self.completions > 0 {
            write!(f, "; completions without their end: {}", self.completions)?;
        }
        if self.pairs > 0 {
            write!(f, "; pairs with nothing to learn: {}", self.pairs)?;
        }
        Ok(())
    }
}
