//! Records as tokens, and as tensors.

use std::borrow::Borrow;
use std::fmt;
use std::iter;
use std::ops::Range;

use anyhow::{Context, Result};
use candle_core::Tensor;
use candle_headroom::data::{Dataset, Loader, Pad};
use candle_headroom::distributed::Group;
use candle_headroom::error::BoxedError;
use rayon::prelude::*;

use super::chat::{Chat, Template};
use super::records::{Record, Records};
use crate::vocabulary::Vocabulary;

/// The target of a token that is not learned.
const IGNORED: i64 = -100;

/// Batches whose samples are sorted by length, so that little is padded.
const SORTED: usize = 16;

/// Most tokens of a text that are continued.
const BEGINNING: usize = 16;

/// Tokens, of which some are learned.
#[derive(Debug, Clone)]
pub struct Sample {
    pub tokens: Vec<u32>,
    /// The tokens that are learned, in order; at least one, and not the first token.
    pub learned: Vec<Range<usize>>,
    /// The first tokens of texts that follow another one in this sample, which they do not see.
    pub starts: Vec<usize>,
}

impl Sample {
    fn after(given: usize, tokens: Vec<u32>) -> Self {
        let learned = iter::once(given..tokens.len()).collect();
        Self::of(tokens, learned)
    }

    fn of(tokens: Vec<u32>, learned: Vec<Range<usize>>) -> Self {
        let starts = Vec::new();
        Self {
            tokens,
            learned,
            starts,
        }
    }

    /// A part of texts that are joined. Nothing comes before the first token of each, so it is not learned; `None` if nothing is.
    fn of_texts(tokens: &[u32], starts: Vec<usize>) -> Option<Self> {
        let ends = starts.iter().copied().chain([tokens.len()]);
        let texts = iter::once(0).chain(starts.iter().copied()).zip(ends);
        let learned = texts.map(|(start, end)| start + 1..end);
        let learned: Vec<_> = learned.filter(|text| !text.is_empty()).collect();
        let tokens = tokens.to_vec();
        (!learned.is_empty()).then_some(Self {
            tokens,
            learned,
            starts,
        })
    }

    /// The number of tokens that are given before the first one that is learned; at least 1.
    fn given(&self) -> usize {
        self.learned.first().map_or(1, |first| first.start)
    }

    /// The number of tokens that are learned.
    pub fn to_learn(&self) -> usize {
        self.learned.iter().map(Range::len).sum()
    }

    /// The tokens that a text may be continued from: the prompt, or the first ones of a text.
    pub fn beginning(&self) -> Vec<u32> {
        let first = self.starts.first().copied();
        let of_text = BEGINNING.min(first.unwrap_or(self.tokens.len()) - 1);
        let of_text = of_text.max(1);
        let given = if self.given() > 1 {
            self.given()
        } else {
            of_text
        };
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

/// What a record is in tokens.
enum Encoded {
    Text(Vec<u32>),
    /// Tokens of which all from a number on are learned.
    Pair(Vec<u32>, usize),
    /// A conversation, or each of its answers.
    Chat(Vec<Sample>),
}

/// Makes samples of records, each of at most `context` tokens and the one that comes next. Texts are joined, each with its end, and cut;
/// a sample begins with the last token of the one before, so that every token but the first of a text is learned once. A conversation is one sample if it is short
/// enough and its template allows it, else each of its answers is one.
pub fn encode(
    records: &Records,
    vocabulary: &Vocabulary,
    context: usize,
    cut: &mut Cut,
) -> Result<Vec<Sample>> {
    let most = context + 1;
    let mut all = records.all.iter();
    let has_chats = all.any(|record| matches!(record, Record::Chat(_)));
    let template = has_chats.then(|| Template::open(&vocabulary.folder));
    let template = template.transpose()?;
    let chat = |template: &Template, chat: &Chat| {
        let encode = |apart| {
            let texts = template.texts(chat, apart)?.into_iter();
            let samples = texts.map(|text| vocabulary.tokens_of_parts(&text.text, &text.learned));
            samples
                .map(|sample| sample.map(|(tokens, learned)| Sample::of(tokens, learned)))
                .collect::<Result<Vec<_>>>()
        };
        let samples = encode(false)?;
        match &samples[..] {
            [whole] if whole.learned.len() > 1 && whole.tokens.len() > most => encode(true),
            _ => Ok(samples),
        }
    };
    let encoded = records.all.par_iter().enumerate().map(|(number, record)| {
        Ok(match (record, &template) {
            (Record::Text(text), _) => Encoded::Text(vocabulary.tokens_of(None, text)?.0),
            (Record::Pair { prompt, completion }, _) => {
                let (tokens, given) = vocabulary.tokens_of(Some(prompt), completion)?;
                Encoded::Pair(tokens, given)
            }
            (Record::Chat(of), Some(template)) => {
                let samples = chat(template, of);
                Encoded::Chat(samples.with_context(|| records.place(number))?)
            }
            (Record::Chat(_), None) => Encoded::Chat(Vec::new()),
        })
    });
    let encoded: Result<Vec<_>> = encoded.collect();
    let (mut samples, mut stream, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    for encoded in encoded? {
        match encoded {
            Encoded::Text(tokens) => {
                texts.push(stream.len());
                stream.extend(tokens);
            }
            Encoded::Pair(tokens, given) => {
                let begin = vocabulary.begin.len();
                samples.extend(cut.fit(tokens, (begin, given), most));
            }
            Encoded::Chat(parts) => {
                for part in parts {
                    samples.extend(match part.learned[..] {
                        [Range { start, end }] => {
                            let mut tokens = part.tokens;
                            tokens.truncate(end);
                            let begin = vocabulary.begin.len();
                            let begin = if tokens.starts_with(&vocabulary.begin) {
                                begin
                            } else {
                                0
                            };
                            cut.fit(tokens, (begin, start), most)
                        }
                        [] => {
                            cut.pairs += 1;
                            None
                        }
                        _ => Some(part),
                    });
                }
            }
        }
    }
    let starts = (0..stream.len().saturating_sub(1)).step_by(context.max(1));
    samples.extend(starts.filter_map(|start| {
        let end = stream.len().min(start + most);
        let within =
            texts.partition_point(|text| *text <= start)..texts.partition_point(|text| *text < end);
        let within = texts[within].iter().map(|text| text - start);
        Sample::of_texts(&stream[start..end], within.collect())
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
        Some(Sample::after(given, tokens))
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

/// Tokens as u32, the next tokens as i64, and, if a sample holds several texts, as u8 where one begins after another; each
/// `(samples, time)`.
pub type Batch = (Tensor, Tensor, Option<Tensor>);

struct Samples(Vec<Sample>);

impl Dataset for Samples {
    type Sample = Sample;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> Result<Sample, BoxedError> {
        Ok(self.0.get(index).ok_or("no such sample")?.clone())
    }

    fn cost(&self, index: usize) -> Result<usize, BoxedError> {
        let sample = self.0.get(index).ok_or("no such sample")?;
        Ok(sample.tokens.len())
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
    let starts = samples.clone().map(|sample: &Sample| {
        let mut starts = vec![0; sample.tokens.len().saturating_sub(1)];
        for start in &sample.starts {
            if let Some(place) = starts.get_mut(*start) {
                *place = 1u8;
            }
        }
        starts
    });
    let starts: Vec<_> = starts.collect();
    let has_texts = starts.iter().flatten().any(|start| *start > 0);
    let inputs = samples.clone().map(|sample: &Sample| {
        let seen = sample.tokens.len().saturating_sub(1);
        &sample.tokens[..seen]
    });
    let targets = samples.map(|sample| {
        let mut next = vec![IGNORED; sample.tokens.len().saturating_sub(1)];
        for place in sample.learned.iter().cloned().flatten() {
            next[place - 1] = i64::from(sample.tokens[place]);
        }
        next
    });
    let inputs = Pad::new(0u32).sequences(inputs.collect())?;
    let targets = Pad::new(IGNORED).sequences(targets.collect())?;
    // What is padded belongs to the last text of its sample.
    let starts = has_texts.then(|| Pad::new(0u8).sequences(starts));
    let starts = starts.transpose()?.map(|starts| starts.values);
    Ok((inputs.values, targets.values, starts))
}

#[cfg(test)]
mod tests {
    use super::{IGNORED, Sample, collate};

    #[test]
    fn texts_of_a_sample_are_told_apart() {
        // The last text has its first token here alone, which is not learned.
        let joined = Sample::of_texts(&[5, 6, 7, 8, 9, 10], vec![2, 5]).unwrap();
        assert_eq!(joined.learned, [1..2, 3..5]);
        let pair = Sample::after(2, vec![1, 2, 3]);
        let (tokens, targets, starts) = collate(&[&joined, &pair]).unwrap();
        let tokens = tokens.to_vec2::<u32>().unwrap();
        assert_eq!(tokens, [[5, 6, 7, 8, 9], [1, 2, 0, 0, 0]]);
        let none = IGNORED;
        let targets = targets.to_vec2::<i64>().unwrap();
        assert_eq!(
            targets,
            [[6, none, 8, 9, none], [none, 3, none, none, none]]
        );
        let starts = starts.unwrap().to_vec2::<u8>().unwrap();
        assert_eq!(starts, [[0, 0, 1, 0, 0], [0; 5]]);
        assert!(collate(&[pair]).unwrap().2.is_none());
        assert!(Sample::of_texts(&[5], Vec::new()).is_none());
    }
}
