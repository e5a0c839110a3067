//! A model of updates over 1 to 16,384 ranks: what memory exhaustion, failures, stragglers and the exchange cost, with recovery local to
//! each rank and with restarts from checkpoints. Its constants are in `constants.rs`.
//!
//! `cargo bench --bench scale [-- --quick]`

mod checks;
mod compute;
mod constants;
mod control;
mod job;
mod random;
mod ring;
#[path = "../support/mod.rs"]
mod support;
mod update;

use checks::AS_BUILT;
use compute::{Conditions, USEFUL};
use constants::{
    BUCKET, FAILURES, GRADIENT_BYTES, MICRO_BATCHES, REPLACED, RESTARTED, STALL, WRITE,
};
use control::Gather;
use job::{Checkpointing, Outcome, Threat};
use random::Random;
use support::{figure, is_quick};
use update::{Exchange, Update};

const SCALES: [usize; 8] = [1, 2, 8, 64, 512, 1024, 4096, 16_384];
const RATE: f64 = 1e-3;

/// What happens when a micro-batch exhausts the memory.
#[derive(Clone, Copy, PartialEq)]
enum Design {
    /// The rank retries it in halves.
    Retry,
    /// The job restarts from its last checkpoint.
    Restart,
    /// It never does, because all micro-batches have half the size.
    Halved,
}

/// A simulated job.
struct Job {
    update: Update,
    outcome: Outcome,
}

impl Job {
    fn run(ranks: usize, rate: f64, design: Design, exchange: &Exchange) -> Self {
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
    fn efficiency(&self) -> f64 {
        self.outcome.kept as f64 * USEFUL / self.outcome.wall
    }

    /// What the rest of the wall time is, the largest first.
    fn losses(&self) -> Vec<(&'static str, f64)> {
        let Self { update, outcome } = self;
        let updates = (outcome.kept + outcome.lost) as f64;
        let mut losses = vec![
            ("waiting for stragglers", updates * update.waiting),
            ("retries", updates * update.retries),
            ("rank 0's star", updates * update.control),
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

fn by_scale() {
    println!(
        "\nby ranks, one exhaustion in {:.0} micro-batches: useful time of the wall time",
        1. / RATE
    );
    println!(
        "{:>7} {:>9} {:>9} {:>9}  what local retry loses most",
        "ranks", "retried", "restarts", "halved"
    );
    for ranks in SCALES {
        let [retried, restarted, halved] = [Design::Retry, Design::Restart, Design::Halved]
            .map(|design| Job::run(ranks, RATE, design, &AS_BUILT));
        let losses = retried.losses().into_iter().take(3);
        let losses = losses.map(|(name, share)| format!("{name} {:.1} %", 100. * share));
        let losses: Vec<_> = losses.collect();
        let percent = [&retried, &restarted, &halved].map(|job| 100. * job.efficiency());
        let [a, b, c] = percent;
        println!(
            "{ranks:>7} {a:>7.2} % {b:>7.2} % {c:>7.2} %  {}",
            losses.join(", ")
        );
        if ranks == 1024 {
            figure("distributed/simulated_efficiency_1024", a, "%");
            figure(
                "distributed/simulated_efficiency_1024_with_restarts",
                b,
                "%",
            );
            figure("distributed/simulated_efficiency_1024_halved", c, "%");
        }
    }
}

fn by_rate() {
    println!("\n1,024 ranks, by exhaustions in a micro-batch");
    println!(
        "{:>7} {:>9} {:>9} {:>9}",
        "rate", "retried", "restarts", "halved"
    );
    for rate in [0., 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2] {
        let percent = [Design::Retry, Design::Restart, Design::Halved]
            .map(|design| 100. * Job::run(1024, rate, design, &AS_BUILT).efficiency());
        let [a, b, c] = percent;
        println!("{rate:>7.0e} {a:>7.2} % {b:>7.2} % {c:>7.2} %");
    }
}

/// What other exchanges would take.
fn by_exchange() {
    println!(
        "\nmilliseconds of an update's exchange, by what ranks are told and by bytes of a call"
    );
    println!(
        "{:>7} {:>12} {:>12} {:>12}   {:>12} {:>12} {:>12}",
        "ranks", "star", "star, sums", "tree, sums", "32 MiB", "512 MiB", "one call"
    );
    let whole = [BUCKET, 16. * BUCKET, GRADIENT_BYTES];
    for ranks in SCALES {
        let ready = vec![0.; ranks];
        let gathers = [Gather::Star, Gather::StarSummary, Gather::TreeSummary(16)];
        let [a, b, c] = gathers.map(|gather| 1e3 * gather.done(&ready));
        let [d, e, f] = whole.map(|bucket| 1e3 * ring::update(ranks, GRADIENT_BYTES, bucket));
        println!("{ranks:>7} {a:>12.2} {b:>12.2} {c:>12.2}   {d:>12.1} {e:>12.1} {f:>12.1}");
    }
    let better = Exchange {
        gather: Gather::TreeSummary(16),
        bucket: GRADIENT_BYTES,
    };
    for ranks in [1024, 16_384] {
        let job = Job::run(ranks, RATE, Design::Retry, &better);
        let name = format!("distributed/simulated_efficiency_{ranks}_tree_and_one_call");
        figure(&name, 100. * job.efficiency(), "%");
    }
}

fn main() {
    checks::all();
    by_scale();
    by_rate();
    by_exchange();
}
