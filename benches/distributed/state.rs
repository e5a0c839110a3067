//! Optimizer state that is whole on each rank, and in pieces: its bytes, and a step's time.

use anyhow::Result;

use crate::ranks::Ranks;
use crate::support::alternate;
use crate::training::{Builder, OptimizerBuilder, SMALL, Training};

const TEXTS: usize = 16;

pub fn compare(ranks: &Ranks, is_quick: bool) -> Result<()> {
    let rounds = if is_quick { 21 } else { 201 };
    let group = |builder: Builder| builder.group(&ranks.group);
    let mut whole = Training::new(SMALL, TEXTS, group)?;
    let mut sharded = Training::with(SMALL, TEXTS, OptimizerBuilder::sharded, group)?;
    let contenders = vec![
        ranks.together("state whole", || {
            whole.step();
        }),
        ranks.together("state in pieces", || {
            sharded.step();
        }),
    ];
    let times = alternate(contenders, rounds);
    let [whole, pieces] = [most_bytes(ranks, &whole)?, most_bytes(ranks, &sharded)?];
    if ranks.is_first() {
        let parameters = sharded.parameters();
        times.print(&format!("a step with AdamW, {parameters} parameters"), 1);
        println!("  bytes of state on a rank: {whole} and {pieces}");
    }
    ranks.figure("sharded_state_bytes", pieces / whole, "x");
    Ok(())
}

/// The bytes of state on the rank that has most.
fn most_bytes(ranks: &Ranks, training: &Training) -> Result<f64> {
    let bytes = training.trainer.optimizer().state_bytes();
    let all = ranks.group.collect(Ok(vec![bytes]))?;
    Ok(all.into_iter().max().unwrap_or_default() as f64)
}
