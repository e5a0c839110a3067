//! The records of all ranks, put together at the end of a run: how each of them spent its time.

use std::time::Duration;
use std::{fmt, iter};

use serde::{Deserialize, Serialize};

use super::recorder::Recorder;
use super::rows::ExchangeRow;
use crate::error::Phase;

/// How the ranks of a group spent their time; from [`Timeline::save_all`](crate::Timeline::save_all).
///
/// `{}` is a line: `rank 3 is the slowest: the others waited 12 % of the time for it`. The ranks that waited longest for each update are
/// compared with the one that waited least; in a long run several updates are taken together.
///
/// ```
/// # use std::time::Duration;
/// # use candle_headroom::timeline::{RankTime, RankTimes};
///
/// # let mut time = RankTime::default();
/// # time.total = Duration::from_secs(100);
/// # let mut times = RankTimes::default();
/// # times.ranks = vec![time.clone(), time];
/// # times.waited_for = vec![Duration::ZERO, Duration::from_secs(25)];
/// // Two ranks trained for 100 seconds, and rank 0 waited 25 of them for rank 1.
/// let line = "rank 1 is the slowest: the others waited 25 % of the time for it";
/// assert_eq!(times.to_string(), line);
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RankTimes {
    /// Each rank's times, in their order.
    pub ranks: Vec<RankTime>,
    /// How long the others waited for each rank, in the order of ranks: the mean over them.
    pub waited_for: Vec<Duration>,
}

/// How one rank spent its time. What is left of [`total`](Self::total) is the caller's work outside of steps, and the time to
/// recover when memory ran out.
///
/// ```
/// use std::time::Duration;
///
/// use candle_headroom::timeline::RankTime;
///
/// /// The share of its time that a rank computes.
/// fn busy(time: &RankTime) -> f64 {
///     time.computing.as_secs_f64() / time.total.as_secs_f64()
/// }
///
/// let mut time = RankTime::default(); // or one of `RankTimes::ranks`
/// time.total = Duration::from_secs(8);
/// time.computing = Duration::from_secs(6);
/// assert_eq!(busy(&time), 0.75);
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RankTime {
    /// The name of its machine.
    pub host: String,
    /// From the beginning of its first batch to the end of its last.
    pub total: Duration,
    /// In transfers, forward and backward passes, and updates of the parameters.
    pub computing: Duration,
    /// Waiting for batches of a [`Loader`](crate::data::Loader).
    pub loading: Duration,
    /// Waiting for other ranks before updates.
    pub waiting: Duration,
    /// Adding the gradients of all ranks.
    pub reducing: Duration,
    /// How often memory ran out.
    pub exhaustions: u64,
    /// The highest use of memory, in bytes; `None` without a memory that counts.
    pub peak: Option<u64>,
}

impl RankTimes {
    /// Returns the rank for which the others waited longest, and the share of the time that they did; `None` if they waited for none.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use candle_headroom::timeline::{RankTime, RankTimes};
    ///
    /// # let mut time = RankTime::default();
    /// # time.total = Duration::from_secs(100);
    /// # let mut times = RankTimes::default();
    /// # times.ranks = vec![time.clone(), time];
    /// # times.waited_for = vec![Duration::ZERO, Duration::from_secs(25)];
    /// // Two ranks trained for 100 seconds, and rank 0 waited 25 of them for rank 1.
    /// assert_eq!(times.slowest(), Some((1, 0.25)));
    /// ```
    pub fn slowest(&self) -> Option<(usize, f64)> {
        let ranks = self.waited_for.iter().enumerate();
        let (rank, _) = ranks.max_by_key(|(_, waited)| **waited)?;
        Some((rank, self.share(rank))).filter(|(_, share)| *share > 0.)
    }

    /// The part of the time that the others waited for a rank, from 0 to 1.
    fn share(&self, rank: usize) -> f64 {
        let total = self.ranks.iter().map(|time| time.total.as_secs_f64());
        let mean = total.sum::<f64>() / self.ranks.len().max(1) as f64;
        let waited = self.waited_for.get(rank).copied().unwrap_or_default();
        match mean > 0. {
            true => (waited.as_secs_f64() / mean).min(1.),
            false => 0.,
        }
    }
}

impl fmt::Display for RankTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Below, the messages between ranks take as long as the waiting.
        const LEAST: f64 = 0.01;
        let Some((rank, share)) = self.slowest().filter(|(_, share)| *share >= LEAST) else {
            return f.write_str("no rank keeps the others waiting");
        };
        let percent = 100. * share;
        write!(
            f,
            "rank {rank} is the slowest: the others waited {percent:.0} % of the time for it"
        )?;
        let shares = (0..self.ranks.len()).map(|other| self.share(other));
        match shares.sum::<f64>() - share {
            rest if rest >= LEAST => write!(f, ", and {:.0} % for other ranks", 100. * rest),
            _ => Ok(()),
        }
    }
}

/// Shortened records of all ranks.
#[derive(Debug)]
pub(super) struct Gathered {
    /// In the order of ranks, with as many exchanges on each.
    pub(super) ranks: Vec<Ranked>,
    pub(super) times: RankTimes,
}

/// One rank's record.
#[derive(Debug)]
pub(super) struct Ranked {
    pub(super) recorder: Recorder,
    /// The time on rank 0's clock at which this record's began, in microseconds.
    pub(super) shift: f64,
}

impl Gathered {
    pub(super) fn read(all: &[Vec<u8>], hosts: &[String]) -> serde_json::Result<Self> {
        let recorders = all.iter().map(|bytes| serde_json::from_slice(bytes));
        let recorders = recorders.collect::<serde_json::Result<_>>();
        Ok(Self::new(recorders?, hosts))
    }

    pub(super) fn new(mut recorders: Vec<Recorder>, hosts: &[String]) -> Self {
        merge_alike(&mut recorders);
        let shifts: Vec<_> = match recorders.first() {
            Some(first) => recorders.iter().map(|other| shift(first, other)).collect(),
            None => Vec::new(),
        };
        let waited_for = waited_for(&recorders).into_iter().map(duration).collect();
        let hosts = hosts.iter().cloned().chain(iter::repeat(String::new()));
        let times = RankTimes {
            ranks: recorders.iter().zip(hosts).map(time).collect(),
            waited_for,
        };
        let ranks = recorders.into_iter().zip(shifts);
        let ranks = ranks.map(|(recorder, shift)| Ranked { recorder, shift });
        let ranks = ranks.collect();
        Self { ranks, times }
    }
}

/// How the rank of this record spent its time.
fn time((recorder, host): (&Recorder, String)) -> RankTime {
    let totals = &recorder.totals;
    let of = |phase| {
        let mut phases = totals.phases.iter();
        let found = phases.find(|total| total.phase == phase);
        found.map_or(0., |total| total.time)
    };
    let (loading, waiting, reducing) = (of(Phase::Load), of(Phase::Wait), of(Phase::Reduce));
    let all: f64 = totals.phases.iter().map(|total| total.time).sum();
    let (began, ended) = recorder.work.unwrap_or_default();
    RankTime {
        host,
        total: duration(ended - began),
        computing: duration(all - loading - waiting - reducing),
        loading: duration(loading),
        waiting: duration(waiting),
        reducing: duration(reducing),
        exhaustions: totals.exhaustions,
        peak: totals.peak,
    }
}

/// Of microseconds.
fn duration(time: f64) -> Duration {
    Duration::try_from_secs_f64(time / 1e6).unwrap_or_default()
}

/// Merges rows until they stand for the same updates on all ranks. A rank that was one update ahead may have merged once more.
fn merge_alike(recorders: &mut [Recorder]) {
    let first = |recorder: &Recorder| {
        let rows = recorder.exchanges.done.rows.first();
        rows.map_or(1, |row| row.updates)
    };
    let most = recorders.iter().map(first).max().unwrap_or(1);
    for recorder in recorders {
        while first(recorder) < most && recorder.exchanges.done.rows.len() > 1 {
            recorder.exchanges.done.halve(ExchangeRow::merge);
        }
    }
}

/// The difference of two records' clocks: the median over the ends of exchanges, which are the same moments on all ranks. Without any, the
/// machines' clocks have to do.
fn shift(first: &Recorder, other: &Recorder) -> f64 {
    let (ours, theirs) = (&first.exchanges.done.rows, &other.exchanges.done.rows);
    let pairs = ours.iter().zip(theirs);
    let mut apart: Vec<_> = pairs.map(|(our, their)| our.ended - their.ended).collect();
    apart.sort_by(f64::total_cmp);
    match apart.get(apart.len() / 2) {
        Some(median) => *median,
        None => (other.origin.unix_ms as f64 - first.origin.unix_ms as f64) * 1e3,
    }
}

/// How long the others waited for each rank, in microseconds: in each exchange for the one that waited least itself.
fn waited_for(recorders: &[Recorder]) -> Vec<f64> {
    let mut waited = vec![0.; recorders.len()];
    let rows = recorders
        .iter()
        .map(|recorder| recorder.exchanges.done.rows.as_slice());
    let rows: Vec<_> = rows.collect();
    let count = rows.iter().map(|rows| rows.len()).min().unwrap_or(0);
    let others = recorders.len().saturating_sub(1).max(1) as f64;
    for at in 0..count {
        let waits = || rows.iter().filter_map(|rows| Some(rows.get(at)?.waited));
        let least = waits().enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((rank, least)) = least
            && let Some(waited) = waited.get_mut(rank)
        {
            *waited += (waits().sum::<f64>() - least) / others;
        }
    }
    waited
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::MemoryReading;
    use crate::timeline::rows::{PhaseRow, StepRow};
    use crate::timeline::{page, trace};

    /// A thousand updates of 100 ms, each with ten forward passes.
    fn recorder() -> Recorder {
        let mut recorder = Recorder::default();
        for step in 1..=1000 {
            let end = 1e5 * step as f64;
            let passes = (1..=10).map(|pass| (Phase::Forward, 8e3 * f64::from(pass), 8e3));
            let exchange = [(Phase::Wait, 9e4, 1e4), (Phase::Reduce, 1e5, 1e4)];
            for (phase, ended, time) in passes.chain(exchange) {
                let ended = end - 1e5 + ended;
                let row = PhaseRow {
                    began: ended - time,
                    ended,
                    step,
                    phase,
                    succeeded: true,
                    memory: MemoryReading::default(),
                };
                recorder.phase(row, None);
            }
            let row = StepRow {
                began: end - 1e5,
                ended: end,
                steps: 1,
                last: step,
                ..StepRow::default()
            };
            recorder.steps.push(row, StepRow::merge);
        }
        recorder
    }

    #[test]
    fn many_ranks_stay_small() {
        const RANKS: usize = 64;
        const MIB: usize = 1 << 20;
        let own = recorder();
        let mut short = own.clone();
        short.shorten(RANKS);
        let sent = serde_json::to_vec(&short).expect("a record");
        assert!(sent.len() < MIB / 8, "{}", sent.len());
        let all = Gathered::read(&vec![sent; RANKS], &[]).expect("the records");
        let page = page::write(&own, "64 ranks", Some(&all));
        let trace = trace::write_all(&all);
        // A page of one process with as many steps has half a MiB.
        assert!(page.len() < 2 * MIB, "{}", page.len());
        assert!(trace.len() < 24 * MIB, "{}", trace.len());
    }
}
