//! Updates over all ranks: everyone computes, tells, reduces.

use crate::compute::{Conditions, Rank, USEFUL};
use crate::constants::{GRADIENT_BYTES, REGROW};
use crate::control::Gather;
use crate::random::Random;
use crate::ring;

/// How the ranks exchange.
#[derive(Clone, Copy)]
pub struct Exchange {
    pub gather: Gather,
    /// Bytes of a call.
    pub bucket: f64,
}

/// Where an update's seconds go.
#[derive(Clone, Copy, Default)]
pub struct Update {
    pub useful: f64,
    /// For the slowest rank, by noise and delays.
    pub waiting: f64,
    /// More for the slowest rank, by exhaustions.
    pub retries: f64,
    pub control: f64,
    pub reduction: f64,
    pub exhaustions: f64,
}

impl Update {
    pub fn seconds(&self) -> f64 {
        self.useful + self.waiting + self.retries + self.control + self.reduction
    }

    /// The mean of several.
    pub fn mean(all: &[Self]) -> Self {
        let mean = |part: fn(&Self) -> f64| all.iter().map(part).sum::<f64>() / all.len() as f64;
        Self {
            useful: mean(|update| update.useful),
            waiting: mean(|update| update.waiting),
            retries: mean(|update| update.retries),
            control: mean(|update| update.control),
            reduction: mean(|update| update.reduction),
            exhaustions: mean(|update| update.exhaustions),
        }
    }
}

/// Simulates updates of `ranks` ranks, after as many that are not counted as a rank stays small.
pub fn simulate(
    ranks: usize,
    updates: usize,
    conditions: &Conditions,
    exchange: &Exchange,
    random: &mut Random,
) -> Vec<Update> {
    let mut states = vec![Rank::default(); ranks];
    let mut ready = vec![0.; ranks];
    let reduction = ring::update(ranks, GRADIENT_BYTES, exchange.bucket);
    let mut one = || {
        let (mut plain, mut whole, mut exhaustions) = (0f64, 0f64, 0);
        for (state, ready) in states.iter_mut().zip(&mut ready) {
            let computed = state.compute(conditions, random);
            plain = plain.max(computed.plain);
            whole = whole.max(computed.whole);
            exhaustions += computed.exhaustions;
            *ready = computed.whole;
        }
        Update {
            useful: USEFUL,
            waiting: plain - USEFUL,
            retries: whole - plain,
            control: exchange.gather.done(&ready) - whole,
            reduction,
            exhaustions: f64::from(exhaustions),
        }
    };
    for _ in 0..=REGROW {
        one();
    }
    (0..updates).map(|_| one()).collect()
}
