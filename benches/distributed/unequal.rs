//! A rank of half the speed: a batch in equal shares, in shares by what the ranks were measured to do, and by their true speeds.

use std::ops::Range;

use anyhow::Result;
use candle_headroom::distributed::{Effort, Shares};
use candle_headroom::train::Exchange;

use crate::ranks::Ranks;
use crate::support::{Contender, alternate};
use crate::training::{SMALL, Training};

/// Texts of the whole batch, of all ranks.
const TEXTS: usize = 96;
/// How many times as long rank 1 takes for a text.
const SLOWNESS: usize = 2;
/// Updates of a round.
const UPDATES: usize = 4;

pub fn compare(ranks: &Ranks, is_quick: bool) -> Result<()> {
    let rounds = if is_quick { 9 } else { 61 };
    let slow = TEXTS / (SLOWNESS + 1);
    let mut shares = Shares::builder(2).build()?;
    let measured = move |last: Option<&Exchange>| {
        if let Some(exchange) = last {
            let efforts = exchange
                .ranks
                .iter()
                .map(|work| Effort::new(work.samples, work.samples, work.computed.as_secs_f64()));
            let efforts: Vec<_> = efforts.collect();
            shares.observe(&efforts).expect("two measurements");
        }
        let parts = shares.division().parts(TEXTS);
        parts.iter().map(Range::len).collect()
    };
    let contenders = vec![
        contender("equal shares", ranks, |_| vec![TEXTS / 2; 2])?,
        contender("measured shares", ranks, measured)?,
        contender("shares by true speed", ranks, |_| vec![TEXTS - slow, slow])?,
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

/// Times a training. `divide` says how many texts each rank gets in the next update, after what all of them did in the last one:
/// `None` in the first update.
fn contender<'a>(
    name: &'static str,
    ranks: &'a Ranks,
    mut divide: impl FnMut(Option<&Exchange>) -> Vec<usize> + 'a,
) -> Result<Contender<'a>> {
    let mut training = Training::new(SMALL, TEXTS, |builder| builder.group(&ranks.group))?;
    let rank = ranks.group.rank();
    let slowness = if rank == 1 { SLOWNESS } else { 1 };
    let mut last = None;
    Ok(ranks.together(name, move || {
        for _ in 0..UPDATES {
            let parts = divide(last.as_ref());
            assert_eq!(parts.iter().sum::<usize>(), TEXTS, "{parts:?}");
            let start = parts[..rank].iter().sum();
            let report = training.step_with(start..start + parts[rank], slowness);
            last = report.exchange;
        }
    }))
}
