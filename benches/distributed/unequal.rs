//! A rank of half the speed: a batch in equal shares, in shares by what the ranks were measured to do, and by their true speeds.

use anyhow::Result;
use candle_headroom::batch::Division;
use candle_headroom::data::{Items, Loader};

use crate::ranks::Ranks;
use crate::support::{Contender, alternate};
use crate::training::{Builder, SMALL, Training};

/// Texts of the whole batch, of all ranks.
const TEXTS: usize = 96;
/// How many times as long rank 1 takes for a text.
const SLOWNESS: usize = 2;
/// Updates of a round.
const UPDATES: usize = 4;
/// Updates in which ranks are measured.
const MEASURED: usize = 8;

pub fn compare(ranks: &Ranks, is_quick: bool) -> Result<()> {
    let rounds = if is_quick { 9 } else { 61 };
    let equal = Division::equal(2);
    let measured = |builder: Builder| builder.measured_shares(MEASURED);
    let by_speed = Division::weighted([SLOWNESS, 1])?;
    let contenders = vec![
        contender("equal shares", ranks, &equal, |builder| builder)?,
        contender("measured shares", ranks, &equal, measured)?,
        contender("shares by true speed", ranks, &by_speed, |builder| builder)?,
    ];
    let rounds = alternate(contenders, rounds);
    if ranks.is_first() {
        rounds.print(
            &format!("an update of {TEXTS} texts, rank 1 of half the speed"),
            UPDATES,
        );
    }
    let speedup = |shares| rounds.ratio("equal shares", shares);
    ranks.figure("unequal_ranks_speedup", speedup("measured shares"), "x");
    let best = speedup("shares by true speed");
    ranks.figure("unequal_ranks_speedup_by_true_speed", best, "x");
    Ok(())
}

/// Times a training with these options, whose loader begins with this division.
fn contender<'a>(
    name: &'static str,
    ranks: &'a Ranks,
    division: &Division,
    options: impl FnOnce(Builder) -> Builder,
) -> Result<Contender<'a>> {
    let mut training = Training::new(SMALL, TEXTS, |builder| options(builder.group(&ranks.group)))?;
    let (x, y) = (training.job.x.clone(), training.job.y.clone());
    let collate = move |texts: Vec<usize>| {
        let start = texts.first().copied().unwrap_or(0);
        let part = |all: &candle_core::Tensor| all.narrow(0, start, texts.len());
        Ok((part(&x)?, part(&y)?))
    };
    let loader = Loader::builder(Items(Vec::from_iter(0..TEXTS)), collate);
    let loader = loader.batch(TEXTS).endless().workers(0);
    let mut loader = loader.group(&ranks.group).build()?;
    if !division.is_equal() {
        loader.divide(division)?;
    }
    let slowness = if ranks.group.rank() == 1 { SLOWNESS } else { 1 };
    Ok(ranks.together(name, move || {
        for batch in loader.by_ref().take(UPDATES) {
            training.step_with(&batch.expect("a batch"), slowness);
        }
    }))
}
