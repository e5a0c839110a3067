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
use constants::{GRADIENT_BYTES, PARAMETER_BITS};
use control::{Gather, STAR, TREE};
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
        "ranks", "star", "tree", "tree, sums", "32 MiB", "512 MiB", "one call"
    );
    const MIB: f64 = 1024. * 1024.;
    let whole = [32. * MIB, 512. * MIB, GRADIENT_BYTES];
    for ranks in SCALES {
        let ready = vec![0.; ranks];
        let sums = Gather {
            is_summary: true,
            ..TREE
        };
        let gathers = [STAR, TREE, sums];
        let [a, b, c] = gathers.map(|gather| 1e3 * gather.done(&ready));
        let [d, e, f] = whole.map(|bucket| 1e3 * ring::update(ranks, GRADIENT_BYTES, bucket));
        println!("{ranks:>7} {a:>12.2} {b:>12.2} {c:>12.2}   {d:>12.1} {e:>12.1} {f:>12.1}");
    }
    let star = Exchange {
        gather: STAR,
        bucket: GRADIENT_BYTES,
    };
    for ranks in [1024, 16_384] {
        for (exchange, name) in [(&AS_BUILT, "tree"), (&star, "star")] {
            let job = Job::run(ranks, RATE, Design::Retry, exchange);
            let name = format!("distributed/simulated_efficiency_{ranks}_{name}");
            figure(&name, 100. * job.efficiency(), "%");
        }
    }
}

/// The message before an update, and what of it goes through rank 0.
fn by_message() {
    println!("\nthe message before an update");
    for ranks in [2, 16, 256, 1024, 16_384] {
        let [tree, star] = [TREE, STAR].map(|gather| 1e3 * gather.done(&vec![0.; ranks]));
        figure(&format!("scale/message_ms_{ranks}"), tree, "ms");
        figure(&format!("scale/message_ms_{ranks}_star"), star, "ms");
        let bytes = TREE.bytes_through_first(ranks);
        figure(
            &format!("scale/bytes_through_rank_0_{ranks}"),
            bytes,
            "bytes",
        );
        let star = STAR.bytes_through_first(ranks);
        figure(
            &format!("scale/bytes_through_rank_0_{ranks}_star"),
            star,
            "bytes",
        );
        // In each of rank 0's messages, what all ranks say alike has a bit more for each parameter.
        let messages = 2 * TREE.branches(1..ranks).count();
        let more = messages as f64 * (10_000. - 300.) * PARAMETER_BITS;
        let name = format!("scale/bytes_through_rank_0_{ranks}_of_10000_parameters");
        figure(&name, bytes + more, "bytes");
    }
}

fn main() {
    checks::all();
    by_scale();
    by_rate();
    by_exchange();
    by_message();
}
