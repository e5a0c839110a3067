//! A job of one design at one scale: its updates in detail, then its life with checkpoints and failures.

use crate::compute::{Conditions, USEFUL};
use crate::constants::{FAILURES, MICRO_BATCHES, REPLACED, RESTARTED, STALL, WRITE};
use crate::job::{self, Checkpointing, Outcome, Threat};
use crate::random::Random;
use crate::support::is_quick;
use crate::update::{self, Exchange, Update};

/// What happens when a micro-batch exhausts the memory.
#[derive(Clone, Copy, PartialEq)]
pub enum Design {
    /// The rank retries it in halves.
    Retry,
    /// The job restarts from its last checkpoint.
    Restart,
    /// It never does, because all micro-batches have half the size.
    Halved,
}

/// A simulated job.
pub struct Job {
    update: Update,
    outcome: Outcome,
}

impl Job {
    pub fn run(ranks: usize, rate: f64, design: Design, exchange: &Exchange) -> Self {
        let conditions = Conditions {
            halved: design == Design::Halved,
            ..Conditions::usual(if design == Design::Retry { rate } else { 0. })
        };
        let micro_batches = if is_quick() { 2_000_000 } else { 40_000_000 };
        let count = micro_batches / (ranks * MICRO_BATCHES as usize);
        let mut random = Random::new(7);
        let updates = update::simulate(
            ranks,
            count.clamp(64, 4_000),
            &conditions,
            exchange,
            &mut random,
        );
        let update = Update::mean(&updates);
        let restarts = if design == Design::Restart { rate } else { 0. };
        let hardware = Threat {
            rate: ranks as f64 * FAILURES / 3600.,
            restart: REPLACED,
        };
        let exhaustion = Threat {
            rate: ranks as f64 * f64::from(MICRO_BATCHES) * restarts / update.seconds(),
            restart: RESTARTED,
        };
        let between = 1. / (hardware.rate + exhaustion.rate);
        let checkpoints = Checkpointing {
            interval: job::interval(STALL, between),
            stall: STALL,
            write: WRITE,
        };
        // A job that never gets on ends by its number of events.
        let limits = if is_quick() {
            (300, 2_000_000)
        } else {
            (2_000, 20_000_000)
        };
        let outcome = job::run(
            &updates,
            &[hardware, exhaustion],
            checkpoints,
            limits,
            &mut random,
        );
        Self { update, outcome }
    }

    /// Useful time of all wall time.
    pub fn efficiency(&self) -> f64 {
        self.outcome.kept as f64 * USEFUL / self.outcome.wall
    }

    /// What the rest of the wall time is, the largest first.
    pub fn losses(&self) -> Vec<(&'static str, f64)> {
        let Self { update, outcome } = self;
        let updates = (outcome.kept + outcome.lost) as f64;
        let mut losses = vec![
            ("waiting for stragglers", updates * update.waiting),
            ("retries", updates * update.retries),
            ("messages", updates * update.control),
            ("ring", updates * update.reduction),
            ("checkpoints", outcome.stalled),
            ("restarts", outcome.restarting),
            ("work done again", outcome.lost as f64 * USEFUL),
        ];
        losses
            .iter_mut()
            .for_each(|(_, seconds)| *seconds /= outcome.wall);
        losses.sort_by(|one, other| other.1.total_cmp(&one.1));
        losses
    }
}
