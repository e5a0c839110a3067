//! Samples per second of several ranks, against as many processes that train by themselves.

use anyhow::Result;

use crate::ranks::Ranks;
use crate::support::{Contender, alternate, median};
use crate::training::{SMALL, Training};

/// So many that the exchange is a small part of a step.
const TEXTS: usize = 64;
/// Steps of a round. Processes that train by themselves do not wait for each other in between.
const STEPS: usize = 4;

pub fn compare(ranks: &Ranks, is_quick: bool) -> Result<()> {
    let rounds = if is_quick { 9 } else { 61 };
    let mut together = Training::new(SMALL, TEXTS, |builder| builder.group(&ranks.group))?;
    let alone = || Training::new(SMALL, TEXTS, |builder| builder);
    let (mut independent, mut only) = (alone()?, alone()?);
    let mut reduced = Vec::new();
    let contenders = vec![
        ranks.together("together", || {
            for _ in 0..STEPS {
                let exchange = together.step().exchange.expect("the ranks' exchange");
                reduced.push(exchange.reduced.as_secs_f64());
            }
        }),
        // All cores are busy here too, and share the memory's bandwidth.
        Contender::timing_itself("each by itself", || {
            ranks.average(ranks.timed(|| steps(&mut independent)))
        }),
        Contender::timing_itself("one, the others idle", || {
            let time = ranks.timed(|| {
                if ranks.is_first() {
                    steps(&mut only);
                }
            });
            // The others sleep here, where MPI would keep their cores busy.
            ranks.group.barrier().expect("all ranks");
            ranks.slowest(time)
        }),
    ];
    let rounds = alternate(contenders, rounds);
    if ranks.is_first() {
        let size = ranks.group.size();
        let title = format!(
            "{} parameters, {TEXTS} texts on each of {size} ranks",
            together.parameters()
        );
        rounds.print(&title, STEPS);
        let part = 100. * median(reduced) * STEPS as f64 / rounds.median("together");
        println!("  the exchange takes {part:.2} % of a step");
    }
    let efficiency = |alone| rounds.ratio(alone, "together");
    ranks.figure("weak_scaling_2_ranks", efficiency("each by itself"), "x");
    ranks.figure(
        "weak_scaling_2_ranks_vs_one_on_an_idle_machine",
        efficiency("one, the others idle"),
        "x",
    );
    Ok(())
}

fn steps(training: &mut Training) {
    for _ in 0..STEPS {
        training.step();
    }
}
