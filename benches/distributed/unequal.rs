//! A rank of half the speed: a batch in equal shares, and in shares after its speed.

use anyhow::Result;
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
    let contenders = vec![
        contender("equal shares", ranks, |_| vec![TEXTS / 2; 2])?,
        contender("shares by true speed", ranks, |_| vec![TEXTS - slow, slow])?,
    ];
    let rounds = alternate(contenders, rounds);
    if ranks.is_first() {
        rounds.print(
            &format!("an update of {TEXTS} texts, rank 1 of half the speed"),
            UPDATES,
        );
    }
    let speedup = rounds.ratio("equal shares", "shares by true speed");
    ranks.figure("unequal_ranks_speedup_by_true_speed", speedup, "x");
    Ok(())
}

/// Times a training. `divide` says how many texts each rank gets in the next update, after what all of them did in the last one: `None` in the
/// first update of a round, before which other contenders took their time.
fn contender<'a>(
    name: &'static str,
    ranks: &'a Ranks,
    mut divide: impl FnMut(Option<&Exchange>) -> Vec<usize> + 'a,
) -> Result<Contender<'a>> {
    let mut training = Training::new(SMALL, TEXTS, |builder| builder.group(&ranks.group))?;
    let rank = ranks.group.rank();
    let slowness = if rank == 1 { SLOWNESS } else { 1 };
    Ok(ranks.together(name, move || {
        let mut last = None;
        for _ in 0..UPDATES {
            let parts = divide(last.as_ref());
            assert_eq!(parts.iter().sum::<usize>(), TEXTS, "{parts:?}");
            let start = parts[..rank].iter().sum();
            let report = training.step_with(start..start + parts[rank], slowness);
            last = report.exchange;
        }
    }))
}
