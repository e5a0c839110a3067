//! The curve itself, and what lies beyond the costs that were seen.

use super::level::Level;
use super::{DEVIATIONS, MemoryModel};

/// How far beyond the largest cost that was seen anything is said to fit, and how far where it is the only one: in proportion to one, which
/// is then expected, errs on the safe side.
const REACH: usize = 8;
const FIRST_REACH: usize = 16;
/// What is added to a slope for a cost twice the largest seen, and beyond; less for one that is nearer.
const CAUTION: f64 = 0.25;
/// A cost so many times the largest seen shows whether the slope holds, and within which part of what was expected it does.
const FARTHER: f64 = 1.25;
const HOLDS: f64 = 0.1;
/// Slopes are taken between costs of which the smaller is at most this part of the larger.
const APART: f64 = 0.8;

impl MemoryModel {
    /// The largest cost of which anything is said.
    pub(super) fn farthest(&self) -> Option<usize> {
        let reach = match self.levels.len() {
            1 => FIRST_REACH,
            _ => REACH,
        };
        Some(self.largest_seen()?.saturating_mul(reach))
    }

    /// What is most likely, in bytes.
    pub(super) fn expected(&self, cost: usize) -> Option<f64> {
        self.curve(
            cost,
            |level| level.mean as f64,
            |top, beyond| self.slopes(top).0 * beyond,
        )
    }

    /// The most that is to be expected, in bytes; it does not fall as the cost rises.
    pub(super) fn most(&self, cost: usize) -> Option<f64> {
        let lower = self.levels.iter().take_while(|level| level.cost <= cost);
        let highest = lower.map(|level| level.mean).max().unwrap_or(0);
        let most = self.curve(
            cost,
            |level| level.mean.max(highest) as f64,
            |top, beyond| {
                let far = (beyond / top.cost as f64).min(1.);
                self.slopes(top).1 * (1. + CAUTION * far) * beyond
            },
        )?;
        // In proportion is the most, whatever was measured.
        let proportional = self.levels.last().map(|top| {
            let high = top.mean.max(highest) as f64;
            high * (cost as f64 / top.cost as f64).max(1.)
        });
        Some(most.min(proportional?) * (1. + DEVIATIONS * self.scatter))
    }

    /// Linear between the levels; below them as if half of the lowest were base, above them by `beyond`.
    fn curve(
        &self,
        cost: usize,
        value: impl Fn(&Level) -> f64,
        beyond: impl Fn(&Level, f64) -> f64,
    ) -> Option<f64> {
        let above = self.levels.iter().find(|level| level.cost >= cost);
        let below = self.levels.iter().rev().find(|level| level.cost <= cost);
        match (below, above) {
            (Some(low), Some(high)) if low.cost < high.cost => {
                let part = (cost - low.cost) as f64 / (high.cost - low.cost) as f64;
                Some(value(low) + (value(high) - value(low)) * part)
            }
            (Some(level), Some(_)) => Some(value(level)),
            (Some(top), None) => Some(value(top) + beyond(top, (cost - top.cost) as f64)),
            (None, Some(low)) => Some(value(low) * (1. + cost as f64 / low.cost as f64) / 2.),
            (None, None) => None,
        }
    }

    /// Looks whether the slope so far told what a larger cost takes. Small micro-batches may peak elsewhere, or with what is allocated once.
    pub(super) fn verify(&mut self, cost: usize, bytes: u64) {
        let Some(top) = self.levels.last().copied() else {
            return;
        };
        let Some(expected) = self.expected(cost).map(|bytes| bytes - top.mean as f64) else {
            return;
        };
        if cost as f64 >= top.cost as f64 * FARTHER {
            let more = bytes as f64 - top.mean as f64;
            self.slope_holds = (more - expected).abs() <= HOLDS * expected;
        }
    }

    /// What each unit beyond the largest level takes: most likely, and at most while it is near.
    fn slopes(&self, top: &Level) -> (f64, f64) {
        let lower = self.levels.iter().rev();
        let mut lower = lower.filter(|low| low.cost as f64 <= APART * top.cost as f64);
        let Some(first) = lower.next() else {
            return (top.proportion(), top.proportion());
        };
        let near = top.slope_from(first).max(0.);
        let most = match self.slope_holds {
            // Over a longer way single peaks that are off count for less.
            true => (self.levels.iter().rev())
                .find(|low| low.cost <= top.cost / 4)
                .map_or(near, |low| top.slope_from(low).max(near)),
            false => top.proportion(),
        };
        (near, most)
    }
}
