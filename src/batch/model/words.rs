//! A model as a line of text, for a trainer's saved state.

use super::level::Level;
use super::{LEVELS, MOST_COST, MemoryModel};
use crate::error::PolicyError;

impl MemoryModel {
    /// `OBSERVED SCATTER SLOPE_HOLDS ASSUMED_BASE COST:BYTES:SEEN …`
    pub(in crate::batch) fn to_words(&self) -> String {
        let mut words = format!(
            "{} {} {} {}",
            self.observed, self.scatter, self.slope_holds, self.assumed_base
        );
        for Level { cost, mean, seen } in &self.levels {
            words.push_str(&format!(" {cost}:{mean}:{seen}"));
        }
        words
    }

    /// What [`to_words`](Self::to_words) wrote; `None` for anything else.
    pub(in crate::batch) fn from_words(words: &str) -> Option<Self> {
        let mut words = words.split(' ');
        let observed = words.next()?.parse().ok()?;
        let scatter = words.next()?.parse().ok()?;
        let slope_holds = words.next()?.parse().ok()?;
        let assumed_base = words.next()?.parse().ok()?;
        let levels = words.map(|word| {
            let mut numbers = word.split(':');
            let level = Level {
                cost: numbers.next()?.parse().ok()?,
                mean: numbers.next()?.parse().ok()?,
                seen: numbers.next()?.parse().ok()?,
            };
            numbers.next().is_none().then_some(level)
        });
        let model = Self {
            levels: levels.collect::<Option<_>>()?,
            observed,
            scatter,
            slope_holds,
            assumed_base,
            held: Vec::new(),
        };
        model.checked().ok()
    }

    /// Itself, if what was read from somewhere can be a model.
    pub(super) fn checked(mut self) -> Result<Self, PolicyError> {
        let Self {
            levels,
            observed,
            scatter,
            ..
        } = &mut self;
        let (observed, scatter) = (*observed, *scatter);
        let saved = |what| Err(PolicyError::Saved { what });
        if levels.len() > LEVELS {
            return saved("more than 16 costs");
        }
        if levels
            .iter()
            .any(|level| !(1..=MOST_COST).contains(&level.cost))
        {
            return saved("a cost of 0, or one that no batch has");
        }
        if levels.iter().any(|level| level.seen > observed) || levels.len() as u64 > observed {
            return saved("fewer observations than costs");
        }
        if !(0. ..=1.).contains(&scatter) {
            return saved("a scatter that does not lie between 0 and 1");
        }
        levels.sort_by_key(|level| level.cost);
        if levels.windows(2).any(|pair| pair[0].cost == pair[1].cost) {
            return saved("the same cost twice");
        }
        Ok(self)
    }
}
