//! What was learned, as words.

use std::str::FromStr;

use super::ceiling::Ceiling;
use super::pace::Pace;
use super::regime::Regime;
use super::shapes::Shapes;
use crate::batch::{MOST_COST, MemoryModel};
use crate::error::{PolicyError, Result};

/// What the words begin with: policy and form.
const HEAD: &str = "predictive 1";
const MOST_SHAPES: usize = 32;

impl Shapes {
    /// One line for each shape, the last used one last.
    pub(super) fn to_words(&self) -> String {
        let mut words = HEAD.to_owned();
        for regime in self.others.iter().chain([&self.active]) {
            words.push('\n');
            words.push_str(&regime.to_words());
        }
        words
    }

    pub(super) fn from_words(words: &str) -> Result<Self> {
        let saved = |what| PolicyError::Saved { what };
        let mut lines = words.lines();
        if lines.next() != Some(HEAD) {
            return Err(saved("what another policy or version has learned").into());
        }
        let regimes = lines.map(Regime::from_words).collect::<Option<Vec<_>>>();
        let mut regimes = regimes.ok_or(saved("a line that says nothing"))?;
        if regimes.len() > MOST_SHAPES {
            return Err(saved("more than 32 shapes").into());
        }
        let active = regimes.pop().ok_or(saved("no shape at all"))?;
        Ok(Self {
            active,
            others: regimes,
        })
    }
}

impl Regime {
    /// `EACH CAP PROVEN PREFERRED TIMED FAILED ROOM;MODEL;MODEL UNTIL FORWARD`, with `-` for what is not known.
    fn to_words(&self) -> String {
        format!(
            "{} {} {} {} {} {} {};{};{}",
            self.each,
            word(self.cap),
            self.proven,
            word(self.pace.preferred),
            word(self.pace.timed),
            word(self.ceiling.map(|ceiling| ceiling.cost)),
            word(self.ceiling.and_then(|ceiling| ceiling.room)),
            self.model.to_words(),
            self.forward.to_words(),
        )
    }

    fn from_words(words: &str) -> Option<Self> {
        let mut parts = words.split(';');
        let mut numbers = parts.next()?.split(' ');
        let each = cost(numbers.next()?)??;
        let cap = cost(numbers.next()?)?;
        let proven = numbers.next()?.parse().ok()?;
        let (preferred, timed) = (cost(numbers.next()?)?, cost(numbers.next()?)?);
        let failed = cost(numbers.next()?)?;
        let room = number(numbers.next()?)?;
        let model = MemoryModel::from_words(parts.next()?)?;
        let forward = MemoryModel::from_words(parts.next()?)?;
        (numbers.next().is_none() && parts.next().is_none()).then(|| Self {
            model,
            forward,
            cap,
            proven,
            ceiling: failed.map(|cost| Ceiling::new(cost, room, false, None)),
            pace: Pace::resume(preferred, timed),
            ..Self::new(each)
        })
    }
}

fn word<N: ToString>(number: Option<N>) -> String {
    number.map_or("-".to_owned(), |number| number.to_string())
}

/// A cost that a batch can have; the inner `None` stands for `-`.
fn cost(word: &str) -> Option<Option<usize>> {
    let cost: Option<usize> = number(word)?;
    let can_be = cost.is_none_or(|cost| (1..=MOST_COST).contains(&cost));
    can_be.then_some(cost)
}

fn number<N: FromStr>(word: &str) -> Option<Option<N>> {
    match word {
        "-" => Some(None),
        word => Some(Some(word.parse().ok()?)),
    }
}
