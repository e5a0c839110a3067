use serde::{Deserialize, Serialize};

/// Updates that an average is of, at most.
const MEMORY: u32 = 16;

/// The relative spread that times are taken to have until more is known.
const SPREAD: f64 = 0.1;

/// How many times the spread a value is off that counts as odd.
const SIGMAS: f64 = 4.;

/// What one unit of cost takes on a rank, in seconds: an average over the last updates.
///
/// A single odd update, such as one that also saved a checkpoint, moves it little. Two in the same direction are a new pace.
///
/// Only operations that IEEE 754 rounds exactly are used, so that all ranks compute the same bits whatever their libraries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pace {
    /// Updates that the average is of.
    updates: u32,
    mean: f64,
    /// The average square of the relative deviations.
    variance: f64,
    /// The last update's, if it was odd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    odd: Option<f64>,
}

impl Pace {
    /// Records the pace of an update, which is positive.
    pub(super) fn observe(&mut self, pace: f64) {
        if self.updates == 0 {
            *self = Self::new(1, pace);
            return;
        }
        let limit = SIGMAS * self.variance.sqrt().max(SPREAD / SIGMAS);
        let off = deviation(pace, self.mean);
        let odd = (off.abs() > limit).then_some(pace);
        let before = std::mem::replace(&mut self.odd, odd);
        if let (Some(_), Some(before)) = (odd, before)
            && (before > self.mean) == (pace > self.mean)
        {
            *self = Self::new(2, before + (pace - before) / 2.);
            return;
        }
        let off = off.clamp(-limit, limit);
        self.updates = (self.updates + 1).min(MEMORY);
        let part = 1. / f64::from(self.updates);
        self.variance += part * (off * off - self.variance);
        self.mean *= match off < 0. {
            true => 1. / (1. - part * off),
            false => 1. + part * off,
        };
    }

    fn new(updates: u32, mean: f64) -> Self {
        Self {
            updates,
            mean,
            variance: SPREAD * SPREAD,
            odd: None,
        }
    }

    /// The average, if there is one.
    pub(super) fn mean(&self) -> Option<f64> {
        let is_number = self.mean.is_normal() && self.mean > 0.;
        (self.updates > 0 && is_number).then_some(self.mean)
    }

    /// Updates that the average is of; at most a few are remembered.
    pub(super) fn updates(&self) -> u32 {
        self.updates
    }

    /// How far the average may be off, relatively.
    pub(super) fn margin(&self) -> f64 {
        SIGMAS * (self.variance / f64::from(self.updates.max(1))).sqrt()
    }
}

/// By what part the larger of two exceeds the smaller: positive if the value is larger than the mean.
fn deviation(value: f64, mean: f64) -> f64 {
    match value < mean {
        true => 1. - mean / value,
        false => value / mean - 1.,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(paces: &[f64]) -> Pace {
        let mut pace = Pace::default();
        paces.iter().for_each(|value| pace.observe(*value));
        pace
    }

    #[test]
    fn one_odd_update_moves_little_and_two_are_a_new_pace() {
        let steady = [1., 1.01, 0.99, 1., 1.01, 0.99, 1., 1., 1., 1.];
        let with = |more: &[f64]| after(&[&steady, more].concat()).mean().unwrap();
        // A tenth of the way is what one of ten counts at most, at a limit of a few tens of percent.
        assert!((with(&[30.]) - 1.).abs() < 0.04, "{}", with(&[30.]));
        assert!((with(&[0.01]) - 1.).abs() < 0.04);
        assert_eq!(with(&[2., 2.]), 2.);
        assert_eq!(with(&[0.5, 0.5]), 0.5);
        // In opposite directions they are no new pace.
        assert!((with(&[2., 0.5]) - 1.).abs() < 0.1);
    }

    #[test]
    fn a_slow_first_update_is_forgotten() {
        assert_eq!(after(&[50., 1., 1.]).mean(), Some(1.));
    }

    #[test]
    fn the_margin_follows_the_spread() {
        let steady = after(&[1.; 40]);
        assert!(steady.margin() < 0.02, "{}", steady.margin());
        let wild: Vec<_> = (0..40)
            .map(|update| 0.9 + 0.2 * f64::from(update % 2))
            .collect();
        let wild = after(&wild);
        // A spread of 10 % over 16 updates: 4 * 0.1 / 4.
        assert!((0.08..0.13).contains(&wild.margin()), "{}", wild.margin());
        assert!((wild.mean().unwrap() - 1.).abs() < 0.03);
    }
}
