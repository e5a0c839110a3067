//! The simulation against closed forms, where there are some.

use crate::compute::{Conditions, USEFUL};
use crate::constants::*;
use crate::control::{TREE, handled};
use crate::job::{self, Checkpointing, Threat};
use crate::random::Random;
use crate::ring::{self, Link};
use crate::update::{self, Exchange, Update};

pub const AS_BUILT: Exchange = Exchange {
    gather: TREE,
    bucket: BUCKET,
};

/// `measured` is within `tolerance` of `expected`, as a share of it.
fn agree(what: &str, measured: f64, expected: f64, tolerance: f64) {
    let error = measured / expected - 1.;
    assert!(
        error.abs() <= tolerance,
        "{what}: simulated {measured}, in closed form {expected}"
    );
    println!(
        "  {what}: {:+.3} % (at most {:.3} %)",
        100. * error,
        100. * tolerance
    );
}

pub fn all() {
    println!("the simulation against closed forms");
    calm();
    stragglers();
    exhaustions();
    rings();
    restarts();
}

/// Without noise an update takes the sum of its parts. Only rounding differs.
fn calm() {
    let calm = Conditions {
        noise: 0.,
        straggles: 0.,
        ..Conditions::usual(0.)
    };
    for ranks in [1, 2, 64] {
        let updates = update::simulate(ranks, 3, &calm, &AS_BUILT, &mut Random::new(1));
        // Of 64 ranks, rank 0 has a branch of 3 and 15 of 4. It reads the first one's message when two leaves of it have been read there.
        let says = |ranks: usize| handled(TREE.bytes(ranks));
        let control = match ranks {
            1 => 0.,
            2 => 2. * WAY + says(1) + says(2),
            _ => 4. * WAY + 2. * says(1) + says(3) + 15. * says(4) + 19. * says(64),
        };
        let expected = USEFUL + control + ring::update(ranks, GRADIENT_BYTES, BUCKET);
        let what = format!("an update of {ranks} ranks without noise");
        agree(&what, Update::mean(&updates).seconds(), expected, 1e-9);
    }
}

/// The mean of the longest of n exponential delays is their mean times 1 + 1/2 + … + 1/n. Its standard deviation is at most π/√6 of
/// theirs, so that 4 standard errors of the mean are the tolerance.
fn stragglers() {
    let delayed = Conditions {
        noise: 0.,
        straggles: 1.,
        ..Conditions::usual(0.)
    };
    for ranks in [16, 256] {
        let count = 4_000;
        let updates = update::simulate(ranks, count, &delayed, &AS_BUILT, &mut Random::new(2));
        let harmonic: f64 = (1..=ranks).map(|n| 1. / n as f64).sum();
        let tolerance = 4. * 1.283 / harmonic / (count as f64).sqrt();
        let what = format!("the longest of {ranks} exponential delays");
        agree(
            &what,
            Update::mean(&updates).waiting,
            STRAGGLE * USEFUL * harmonic,
            tolerance,
        );
    }
}

/// An exhaustion costs half a micro-batch, the cleanup, and halves for the rest of its update and those after it. Each is as likely at
/// every micro-batch if it is rare; at this rate the earlier ones are preferred by less than 1 %, which is the tolerance.
fn exhaustions() {
    let quiet = Conditions {
        noise: 0.,
        straggles: 0.,
        ..Conditions::usual(1e-3)
    };
    let updates = update::simulate(1, 100_000, &quiet, &AS_BUILT, &mut Random::new(3));
    let mean = Update::mean(&updates);
    let small = f64::from(MICRO_BATCHES + 1) / 2. + f64::from(REGROW * MICRO_BATCHES);
    let expected = (WORK + FIXED) / 2. + CLEANUP + FIXED * small;
    agree(
        "the cost of an exhaustion",
        mean.retries / mean.exhaustions,
        expected,
        0.01,
    );
}

/// Hop by hop, the latencies overlap with the slowest link's pieces where links differ, so that the closed form is no less.
fn rings() {
    let bytes = 1e9;
    let even = vec![
        Link {
            latency: HOP_INSIDE,
            bandwidth: INSIDE
        };
        8
    ];
    agree(
        "a ring of 8, hop by hop",
        ring::call(8, bytes) - CALL,
        ring::hop_by_hop(&even, bytes),
        1e-9,
    );
    let hops = ring::hop_by_hop(&ring::links(64), bytes);
    agree(
        "a ring of 64 in 8 nodes, hop by hop",
        ring::call(64, bytes) - CALL,
        hops,
        0.1,
    );
    let small = ring::hop_by_hop(&ring::links(512), 1e6);
    agree(
        "a ring of 512 in 64 nodes, few bytes",
        ring::call(512, 1e6) - CALL,
        small,
        0.05,
    );
}

/// A segment of work and its checkpoint take (M + R) (e^(segment / M) - 1) seconds at a mean time M between failures and R seconds for a
/// restart without failures (Daly 2006, section 2). 2 % are 4 standard errors of 40,000 failures.
fn restarts() {
    let second = [Update {
        useful: 1.,
        ..Update::default()
    }];
    let threat = Threat {
        rate: 1. / 30.,
        restart: 5.,
    };
    let work = |interval: f64, random: &mut Random| {
        let checkpoints = Checkpointing {
            interval,
            stall: 1.,
            write: 0.,
        };
        let outcome = job::run(&second, &[threat], checkpoints, (40_000, u64::MAX), random);
        outcome.wall / outcome.kept as f64
    };
    let expected = (30. + 5.) * ((11f64 / 30.).exp() - 1.) / 10.;
    agree(
        "seconds for a second's work, with restarts",
        work(10., &mut Random::new(4)),
        expected,
        0.02,
    );
    let best = job::interval(1., 30.);
    let [short, right, long] =
        [best / 4., best, 4. * best].map(|interval| work(interval, &mut Random::new(5)));
    assert!(
        right < short && right < long,
        "Daly's interval is not the best: {short} {right} {long}"
    );
}
