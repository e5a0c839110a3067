//! A long job: updates, checkpoints, and what ends it, as events.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::random::Random;
use crate::update::Update;

/// What ends a job, and how long it takes until it trains again.
#[derive(Clone, Copy)]
pub struct Threat {
    /// Per second.
    pub rate: f64,
    pub restart: f64,
}

#[derive(Clone, Copy)]
pub struct Checkpointing {
    /// Seconds between checkpoints, at least.
    pub interval: f64,
    /// Seconds for which training waits.
    pub stall: f64,
    /// Seconds until a checkpoint is on the disk.
    pub write: f64,
}

/// Daly's interval for checkpoints that cost `stall` seconds at this mean time between failures (Daly, A higher order estimate of the
/// optimum checkpoint interval, 2006, equation 37; its first term is Young's of 1974).
pub fn interval(stall: f64, between: f64) -> f64 {
    if stall >= 2. * between {
        return between;
    }
    let ratio = stall / (2. * between);
    (2. * stall * between).sqrt() * (1. + ratio.sqrt() / 3. + ratio / 9.) - stall
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Updated,
    Stalled,
    Written { updates: u64 },
    Ends { restart: f64 },
    Restarted,
}

/// `life` is the start of the process that the event belongs to: events of a process that has ended are void.
#[derive(Clone, Copy, PartialEq)]
struct Event {
    time: f64,
    life: u64,
    kind: Kind,
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// So that a heap gives the earliest first.
impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        other.time.total_cmp(&self.time)
    }
}

/// What a job did.
#[derive(Clone, Copy, Default)]
pub struct Outcome {
    pub wall: f64,
    /// Updates on the disk, and those done once more or lost.
    pub kept: u64,
    pub lost: u64,
    pub stalled: f64,
    pub restarting: f64,
    pub ends: u64,
}

/// Runs until `ends` failures or `most` events, drawing each update's seconds from those simulated.
pub fn run(
    updates: &[Update],
    threats: &[Threat],
    checkpoints: Checkpointing,
    (ends, most): (u64, u64),
    random: &mut Random,
) -> Outcome {
    let mut heap = BinaryHeap::new();
    let (mut outcome, mut life, mut done, mut saved_at, mut writing) =
        (Outcome::default(), 0, 0, 0., false);
    heap.push(Event {
        time: 0.,
        life,
        kind: Kind::Restarted,
    });
    for _ in 0..most {
        let Some(event) = heap.pop() else { break };
        if event.life != life {
            continue;
        }
        let now = event.time;
        let mut later = |after: f64, life: u64, kind: Kind| {
            heap.push(Event {
                time: now + after,
                life,
                kind,
            })
        };
        match event.kind {
            Kind::Restarted => {
                (saved_at, writing) = (now, false);
                for threat in threats.iter().filter(|threat| threat.rate > 0.) {
                    later(
                        random.exponential() / threat.rate,
                        life,
                        Kind::Ends {
                            restart: threat.restart,
                        },
                    );
                }
                later(random.one_of(updates).seconds(), life, Kind::Updated);
            }
            Kind::Updated => {
                done += 1;
                match now - saved_at >= checkpoints.interval && !writing {
                    true => later(checkpoints.stall, life, Kind::Stalled),
                    false => later(random.one_of(updates).seconds(), life, Kind::Updated),
                }
            }
            Kind::Stalled => {
                outcome.stalled += checkpoints.stall;
                (saved_at, writing) = (now, true);
                later(checkpoints.write, life, Kind::Written { updates: done });
                later(random.one_of(updates).seconds(), life, Kind::Updated);
            }
            Kind::Written { updates } => (outcome.kept, writing) = (updates, false),
            Kind::Ends { restart } => {
                outcome.lost += done - outcome.kept;
                outcome.restarting += restart;
                outcome.ends += 1;
                outcome.wall = now + restart;
                if outcome.ends == ends {
                    break;
                }
                (done, life) = (outcome.kept, life + 1);
                later(restart, life, Kind::Restarted);
            }
        }
        outcome.wall = outcome.wall.max(now);
    }
    outcome
}
