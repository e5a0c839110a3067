//! Files as batches of tokens.

mod chat;
mod records;
mod samples;

use anyhow::{Result, ensure};
use crc32fast::Hasher;
pub use samples::{Batch, Sample, collate, load};

use crate::arguments::DataOptions;
use crate::vocabulary::Vocabulary;
use samples::Cut;

/// Samples to learn from, and samples to evaluate on.
pub struct Data {
    pub learned: Vec<Sample>,
    pub held_out: Vec<Sample>,
    /// What became of samples that were too long or held nothing to learn; empty if there were none.
    pub cut: String,
}

impl Data {
    /// Reads all files. A sample has at most `context` tokens, and one to predict.
    pub fn read(options: &DataOptions, vocabulary: &Vocabulary, context: usize) -> Result<Self> {
        let mut cut = Cut::default();
        let mut read = |files: &[_]| {
            let records = records::read(files)?;
            samples::encode(&records, vocabulary, context, &mut cut)
        };
        let mut learned = read(&options.files)?;
        ensure!(
            !learned.is_empty(),
            "the data holds too little text to learn from: name more"
        );
        let held_out = match options.eval.is_empty() {
            true => hold_out(&mut learned, options.held_out),
            false => read(&options.eval)?,
        };
        ensure!(
            options.eval.is_empty() || !held_out.is_empty(),
            "the files of --eval hold too little text to evaluate on: name more"
        );
        Ok(Self {
            learned,
            held_out,
            cut: cut.to_string(),
        })
    }

    /// What two runs with the same data have in common, in a line.
    pub fn checksum(&self) -> String {
        let mut hasher = Hasher::new();
        for sample in self.learned.iter().chain(&self.held_out) {
            for part in &sample.learned {
                hasher.update(&(part.start as u64).to_le_bytes());
                hasher.update(&(part.end as u64).to_le_bytes());
            }
            for start in &sample.starts {
                hasher.update(&(*start as u64).to_le_bytes());
            }
            for token in &sample.tokens {
                hasher.update(&token.to_le_bytes());
            }
        }
        format!(
            "{} + {} samples with the checksum {:08x}",
            self.learned.len(),
            self.held_out.len(),
            hasher.finalize()
        )
    }
}

/// Takes a part of the samples out, evenly from all of them; at least one stays.
fn hold_out(samples: &mut Vec<Sample>, part: f64) -> Vec<Sample> {
    let all = samples.len();
    let wanted = ((all as f64 * part).round() as usize).max(usize::from(part > 0.));
    let wanted = wanted.min(all.saturating_sub(1));
    // The sample at place i is taken where i · wanted / all reaches another whole number.
    let is_held = |place: usize| (place + 1) * wanted / all > place * wanted / all;
    let all = std::mem::take(samples).into_iter().enumerate();
    let (held, learned): (Vec<_>, Vec<_>) = all.partition(|(place, _)| is_held(*place));
    samples.extend(learned.into_iter().map(|(_, sample)| sample));
    held.into_iter().map(|(_, sample)| sample).collect()
}
