//! Updates of several ranks: how long each one worked, waited and reduced.

use std::mem;

use serde::{Deserialize, Serialize};

use super::rows::{PhaseRow, Thinned};
use crate::error::Phase;

/// An update of several ranks, or several that were merged, from the end of the exchange before.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct ExchangeRow {
    pub(super) began: f64,
    /// All ranks end an exchange at the same time.
    pub(super) ended: f64,
    pub(super) updates: u64,
    pub(super) loaded: f64,
    pub(super) computed: f64,
    pub(super) waited: f64,
    pub(super) reduced: f64,
    pub(super) retries: u64,
}

impl ExchangeRow {
    pub(super) fn merge(&mut self, next: Self) {
        *self = Self {
            began: self.began,
            ended: next.ended,
            updates: self.updates + next.updates,
            loaded: self.loaded + next.loaded,
            computed: self.computed + next.computed,
            waited: self.waited + next.waited,
            reduced: self.reduced + next.reduced,
            retries: self.retries + next.retries,
        };
    }
}

/// The updates so far, as many on each rank, and merged alike.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Exchanges {
    pub(super) done: Thinned<ExchangeRow, 1024>,
    /// What happened since the last one.
    #[serde(skip)]
    running: Option<ExchangeRow>,
    /// The ranks have met since the last one.
    #[serde(skip)]
    have_met: bool,
}

impl Exchanges {
    /// Work begins, perhaps the first.
    pub(super) fn begin(&mut self, at: f64) {
        self.running.get_or_insert(ExchangeRow {
            began: at,
            ..ExchangeRow::default()
        });
    }

    pub(super) fn retry(&mut self) {
        self.running.iter_mut().for_each(|row| row.retries += 1);
    }

    /// Adds a phase. The sum over all ranks ends an exchange.
    pub(super) fn phase(&mut self, row: &PhaseRow) {
        let Some(running) = &mut self.running else {
            return;
        };
        let time = row.ended - row.began;
        match row.phase {
            Phase::Load => running.loaded += time,
            Phase::Wait => {
                running.waited += time;
                self.have_met = row.succeeded;
            }
            Phase::Reduce => running.reduced += time,
            // A part of the backward pass.
            Phase::Recompute => {}
            _ => running.computed += time,
        }
        if row.phase == Phase::Reduce && row.succeeded {
            let next = ExchangeRow {
                began: row.ended,
                ..ExchangeRow::default()
            };
            let have_met = mem::take(&mut self.have_met);
            let done = ExchangeRow {
                ended: row.ended,
                updates: u64::from(have_met),
                ..mem::replace(running, next)
            };
            match (have_met, self.done.rows.last_mut()) {
                // With a sharded state, each update ends with a second exchange.
                (false, Some(last)) => last.merge(done),
                _ => self.done.push(done, ExchangeRow::merge),
            }
        }
    }
}
