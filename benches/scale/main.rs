//! A model of updates over 1 to 16,384 ranks: what memory exhaustion, failures, stragglers and the exchange cost, with recovery local to
//! each rank and with restarts from checkpoints. Its constants are in `constants.rs`.
//!
//! `cargo bench --bench scale [-- --quick]`

mod checks;
mod compute;
mod constants;
mod control;
mod experiment;
mod job;
mod random;
mod ring;
#[path = "../support/mod.rs"]
mod support;
mod update;

use checks::AS_BUILT;
use constants::GRADIENT_BYTES;
use control::Gather;
use experiment::{Design, Job};
use support::figure;
use update::Exchange;

const SCALES: [usize; 8] = [1, 2, 8, 64, 512, 1024, 4096, 16_384];
const RATE: f64 = 1e-3;

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
    const MIB: f64 = 1024. * 1024.;
    let whole = [32. * MIB, 512. * MIB, GRADIENT_BYTES];
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
        let name = format!("distributed/simulated_efficiency_{ranks}_tree");
        figure(&name, 100. * job.efficiency(), "%");
    }
}

fn main() {
    checks::all();
    by_scale();
    by_rate();
    by_exchange();
}
