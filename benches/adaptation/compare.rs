//! Runs every policy on every simulated device.

use candle_headroom::Predictive;
use candle_headroom::batch::Halving;

use crate::curves::{Curve, Device};
use crate::others::{self, Search};
use crate::ours;
use crate::support::figure;
use crate::tally::Tally;

const STEPS: usize = 100;
/// Seeds of the noise; the worst run counts.
const SEEDS: [u64; RUNS] = [1, 2, 3, 4, 5];
const RUNS: usize = 5;
/// Samples in a global batch, and how many of them fit into memory.
const BATCHES: [(usize, usize); 4] = [(128, 100), (256, 150), (1024, 300), (2048, 37)];

/// The simulated devices for a global batch of `batch` samples with room for `room` of them.
fn curves(batch: usize, room: usize) -> Vec<Curve> {
    let affine = || Curve::affine(batch, room);
    let named = |name, curve| Curve { name, ..curve };
    let part = |part: f64| room as f64 * part;
    vec![
        affine(),
        named(
            "rounded",
            Curve {
                rounding: part(0.02),
                ..affine()
            },
        ),
        named(
            "workspace",
            Curve {
                workspace: Some((room * 2 / 5, part(0.1))),
                ..affine()
            },
        ),
        named(
            "one_time",
            Curve {
                once: part(0.5),
                ..affine()
            },
        ),
        named(
            "noisy",
            Curve {
                noise: 0.02,
                ..affine()
            },
        ),
        named(
            "drifting",
            Curve {
                rooms: vec![(0, 300), (33, 120), (66, 600)],
                ..affine()
            },
        ),
        named(
            "noisy_drifting",
            Curve {
                noise: 0.02,
                rooms: vec![(0, 300), (33, 120), (66, 600)],
                ..affine()
            },
        ),
        named(
            "mostly_base",
            Curve {
                base: part(1.5),
                ..affine()
            },
        ),
        named(
            "mostly_base_shapes",
            Curve {
                base: part(1.5),
                rooms: vec![(0, room), (33, (room * 2 / 5).max(1)), (66, room * 2)],
                lengths: vec![1., 1.7, 0.6],
                ..affine()
            },
        ),
        named(
            "flat",
            Curve {
                flat: part(0.6),
                ..affine()
            },
        ),
        named(
            "late_workspace",
            Curve {
                workspace: Some((room * 9 / 10, part(0.1))),
                ..affine()
            },
        ),
        named(
            "shapes",
            Curve {
                lengths: vec![1., 1.7, 0.6, 2.5, 1.2, 3.9, 0.8],
                ..affine()
            },
        ),
    ]
}

/// The same device without measurements.
fn blind(curve: &Curve) -> Curve {
    Curve {
        is_blind: true,
        ..curve.clone()
    }
}

/// The same device with 0.4 of the room for a third of the time.
fn pressed(curve: &Curve) -> Curve {
    let [(0, room)] = curve.rooms[..] else {
        return curve.clone();
    };
    Curve {
        rooms: vec![(0, room), (33, (room * 2 / 5).max(1)), (66, room)],
        ..curve.clone()
    }
}

type Contender = (&'static str, fn(Device) -> Tally);

/// This crate's policies, the default first, then those of other libraries.
const CONTENDERS: [Contender; 6] = [
    ("predictive", |device| {
        ours::run(&mut Predictive::default(), device, STEPS)
    }),
    ("halving", |device| {
        ours::run(&mut Halving::default(), device, STEPS)
    }),
    ("composer", |device| others::composer(device, STEPS)),
    ("accelerate", |device| others::accelerate(device, STEPS)),
    ("lightning_power", |device| {
        others::lightning(device, STEPS, Search::Power)
    }),
    ("lightning_binary", |device| {
        others::lightning(device, STEPS, Search::Binary)
    }),
];

/// The worst results over several runs.
#[derive(Clone, Copy, Debug)]
struct Worst {
    failures: f64,
    work: f64,
    utilisation: f64,
    regrow_steps: f64,
}

impl Worst {
    const NONE: Self = Self {
        failures: 0.,
        work: 0.,
        utilisation: f64::INFINITY,
        regrow_steps: 0.,
    };

    fn of(self, other: Self) -> Self {
        Self {
            failures: self.failures.max(other.failures),
            work: self.work.max(other.work),
            utilisation: self.utilisation.min(other.utilisation),
            regrow_steps: self.regrow_steps.max(other.regrow_steps),
        }
    }

    /// The measures in which this is worse than `other`.
    fn behind(&self, other: &Self) -> Vec<&'static str> {
        let measures = [
            ("failures", self.failures > other.failures),
            ("work", self.work > other.work),
            ("utilisation", self.utilisation < other.utilisation),
            ("regrow_steps", self.regrow_steps > other.regrow_steps),
        ];
        let worse = measures.into_iter().filter(|(_, is_worse)| *is_worse);
        worse.map(|(name, _)| name).collect()
    }
}

/// The most steps until the default policy, without measurements, uses 0.95 of what fits again after more room has come.
fn blind_regrow_steps(families: &[Vec<Curve>]) -> f64 {
    let mut worst = 0f64;
    for (curve, (batch, room)) in (families.iter().zip(BATCHES))
        .flat_map(|(curves, batch)| curves.iter().map(move |curve| (curve, batch)))
    {
        for seed in SEEDS {
            let device = Device::new(&blind(&pressed(curve)), seed);
            let tally = ours::run(&mut Predictive::default(), device, STEPS);
            let steps = tally.regrow_steps(66);
            if steps > 10. {
                println!("blind on {} ({batch}, {room}): {steps} steps", curve.name);
            }
            worst = worst.max(steps);
        }
    }
    worst
}

fn measure(curve: &Curve, run: fn(Device) -> Tally) -> Worst {
    let seeds = SEEDS.map(|seed| {
        let tally = run(Device::new(curve, seed));
        let again = run(Device::new(&pressed(curve), seed));
        Worst {
            failures: tally.failures(),
            work: tally.work(),
            utilisation: tally.utilisation(),
            regrow_steps: again.regrow_steps(66),
        }
    });
    seeds.into_iter().fold(Worst::NONE, Worst::of)
}

/// Compares all policies on all devices, each with the same seeds, and prints the figures.
pub fn compare() {
    let families: Vec<Vec<Curve>> = BATCHES.map(|(batch, room)| curves(batch, room)).to_vec();
    let count = families[0].len();
    let (mut worst, mut behind, mut behind_once) = (Worst::NONE, 0, 0);
    println!(
        "{STEPS} steps; the worst of {RUNS} runs each of the global batches {BATCHES:?} (samples, room)"
    );
    println!(
        "{:<21} {:<17} failures     work  utilisation  regrow steps",
        "", ""
    );
    for index in 0..count {
        let name = families[0][index].name;
        let measured = CONTENDERS.map(|(policy, run)| {
            let each = families.iter().map(|curves| measure(&curves[index], run));
            let each: Vec<Worst> = each.collect();
            let worst = each.iter().copied().fold(Worst::NONE, Worst::of);
            println!(
                "{name:<21} {policy:<17} {:>8} {:>8.3} {:>12.3} {:>13}",
                worst.failures, worst.work, worst.utilisation, worst.regrow_steps
            );
            (policy, worst, each)
        });
        for (policy, worst, _) in &measured {
            let figure = |measure: &str, number, unit| {
                figure(
                    &format!("adaptation/{name}/{policy}/{measure}"),
                    number,
                    unit,
                );
            };
            figure("failures", worst.failures, "failures");
            figure("work", worst.work, "x");
            figure("utilisation", worst.utilisation, "x");
            figure("regrow_steps", worst.regrow_steps, "steps");
        }
        let (_, ours, each) = &measured[0];
        worst = worst.of(*ours);
        for (policy, other, others) in &measured[2..] {
            behind += ours.behind(other).len();
            for ((ours, other), batch) in each.iter().zip(others).zip(BATCHES) {
                for measure in ours.behind(other) {
                    println!("behind {policy} on {name} {batch:?}: {measure}");
                    behind_once += 1;
                }
            }
        }
    }
    figure("adaptation/ours_worst_failures", worst.failures, "failures");
    figure("adaptation/ours_worst_work", worst.work, "x");
    figure("adaptation/ours_worst_utilisation", worst.utilisation, "x");
    figure(
        "adaptation/ours_worst_regrow_steps",
        worst.regrow_steps,
        "steps",
    );
    figure(
        "adaptation/blind_regrow_steps",
        blind_regrow_steps(&families),
        "steps",
    );
    figure(
        "adaptation/ours_behind_in_single_batches",
        behind_once as f64,
        "measures",
    );
    figure("adaptation/ours_behind", behind as f64, "measures");
}
