//! The records of all ranks, put together at the end of a run.

use std::time::Duration;

use super::exchanges::ExchangeRow;
use super::rank_times::{RankTime, RankTimes};
use super::recorder::Recorder;
use crate::distributed::Group;
use crate::error::{Phase, Result};

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
    pub(super) host: String,
    pub(super) recorder: Recorder,
    /// The time on rank 0's clock at which this record's began, in microseconds.
    pub(super) shift: f64,
}

impl Gathered {
    /// Gives rank 0 the records of all, and all ranks how they spent their time.
    pub(super) fn of(group: &Group, mut own: Recorder) -> Result<(Option<Self>, RankTimes)> {
        const CALL: &str = "save a timeline";
        own.shorten(group.size());
        let bytes = serde_json::to_vec(&own).map_err(candle_core::Error::wrap)?;
        let all = group.control().gather_at_first(CALL, &bytes)?;
        let gathered = match group.rank() {
            0 => match Self::read(&all, group.hosts()) {
                Ok(gathered) => Some(gathered),
                Err(error) => return Err(group.collect_none(CALL, error)),
            },
            _ => None,
        };
        let own = gathered.iter().map(|all| all.times.clone()).collect();
        let times = group.collect_in(CALL, own)?;
        // Only rank 0 gave any.
        let times = times.into_iter().next().unwrap_or_default();
        Ok((gathered, times))
    }

    fn read(all: &[Vec<u8>], hosts: &[String]) -> Result<Self> {
        let recorders = all.iter().map(|bytes| serde_json::from_slice(bytes));
        let recorders = recorders.collect::<serde_json::Result<_>>();
        let recorders = recorders.map_err(candle_core::Error::wrap)?;
        Ok(Self::new(recorders, hosts))
    }

    pub(super) fn new(mut recorders: Vec<Recorder>, hosts: &[String]) -> Self {
        merge_alike(&mut recorders);
        let shifts: Vec<_> = match recorders.first() {
            Some(first) => recorders.iter().map(|other| shift(first, other)).collect(),
            None => Vec::new(),
        };
        let waited_for = waited_for(&recorders).into_iter().map(duration);
        let waited_for = waited_for.collect();
        let hosts = hosts
            .iter()
            .cloned()
            .chain(std::iter::repeat(String::new()));
        let ranks = recorders.into_iter().zip(hosts).zip(shifts);
        let ranks: Vec<_> = ranks
            .map(|((recorder, host), shift)| Ranked {
                host,
                recorder,
                shift,
            })
            .collect();
        let times = RankTimes {
            ranks: ranks.iter().map(Ranked::time).collect(),
            waited_for,
        };
        Self { ranks, times }
    }
}

impl Ranked {
    fn time(&self) -> RankTime {
        let totals = &self.recorder.totals;
        let of = |phase| {
            let mut phases = totals.phases.iter();
            let found = phases.find(|total| total.phase == phase);
            found.map_or(0., |total| total.time)
        };
        let (loading, waiting, reducing) = (of(Phase::Load), of(Phase::Wait), of(Phase::Reduce));
        let all: f64 = totals.phases.iter().map(|total| total.time).sum();
        let (began, ended) = self.recorder.work.unwrap_or_default();
        RankTime {
            host: self.host.clone(),
            total: duration(ended - began),
            computing: duration(all - loading - waiting - reducing),
            loading: duration(loading),
            waiting: duration(waiting),
            reducing: duration(reducing),
            exhaustions: totals.exhaustions,
            peak: totals.peak,
        }
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
    use crate::timeline::recorder::push;
    use crate::timeline::rows::{PhaseRow, StepRow};
    use crate::timeline::{SavedTrace, page, trace};

    /// Updates of 100 ms, of which this rank waits for `waited`, on a clock that is `ahead`; all in microseconds.
    fn recorder(updates: usize, waited: f64, ahead: f64) -> Recorder {
        let mut recorder = Recorder::default();
        recorder.exchanges.begin(ahead);
        for step in 0..updates {
            let began = 1e5 * step as f64 + ahead;
            let mut phase = |phase, began: f64, time: f64| {
                let row = PhaseRow {
                    began,
                    ended: began + time,
                    step: step as u64 + 1,
                    phase,
                    succeeded: true,
                    memory: MemoryReading::default(),
                };
                recorder.totals.phase(&row, None);
                recorder.exchanges.phase(&row);
                push(&mut recorder.phases, row, 16_384);
            };
            let computing = (9e4 - waited) / 10.;
            for part in 0..10 {
                phase(Phase::Forward, began + computing * part as f64, computing);
            }
            phase(Phase::Wait, began + 9e4 - waited, waited);
            phase(Phase::Reduce, began + 9e4, 1e4);
            let row = StepRow {
                began,
                ended: began + 1e5,
                steps: 1,
                last: step as u64 + 1,
                samples: 8,
                ..StepRow::default()
            };
            recorder.steps.push(row, StepRow::merge);
        }
        recorder.work = Some((ahead, ahead + 1e5 * updates as f64));
        recorder
    }

    fn gathered(mut recorders: Vec<Recorder>) -> Gathered {
        let ranks = recorders.len();
        let recorders = recorders.iter_mut().map(|recorder| {
            recorder.shorten(ranks);
            let bytes = serde_json::to_vec(recorder).expect("a record");
            serde_json::from_slice(&bytes).expect("the record")
        });
        let hosts: Vec<_> = (0..ranks).map(|rank| format!("node{rank}")).collect();
        Gathered::new(recorders.collect(), &hosts)
    }

    #[test]
    fn clocks_are_aligned_and_a_rank_that_is_one_update_ahead_is_merged_alike() {
        // The 1,025th update makes a record merge its rows.
        let all = gathered(vec![
            recorder(1025, 0., 5e6),
            recorder(1024, 5e4, 1e6),
            recorder(1024, 2e4, 9e6),
        ]);
        let shifts: Vec<_> = all.ranks.iter().map(|rank| rank.shift.round()).collect();
        assert_eq!(shifts, [0., 4e6, -4e6]);
        let rows = all
            .ranks
            .iter()
            .map(|rank| &rank.recorder.exchanges.done.rows);
        assert!(rows.clone().all(|rows| rows[0].updates == 2));
        let (rank, share) = all.times.slowest().expect("rank 0");
        // The others wait for 50 and 20 of 100 ms.
        assert!(rank == 0 && (share - 0.35).abs() < 0.001, "{share}");
        let text = all.times.to_string();
        assert_eq!(
            text,
            "rank 0 is the slowest: the others waited 35 % of the time for it"
        );
    }

    #[test]
    fn without_an_update_the_machines_clocks_have_to_do() {
        let (mut first, mut other) = (Recorder::default(), Recorder::default());
        (first.origin.unix_ms, other.origin.unix_ms) = (5000, 5250);
        let all = gathered(vec![first, other]);
        assert_eq!(all.ranks[1].shift, 250e3);
        assert_eq!(all.times.to_string(), "no rank keeps the others waiting");
        page::write(&Recorder::default(), "nothing", Some(&all));
        trace::write_all(&all);
    }

    #[test]
    fn the_page_of_a_trace_that_was_read_back_is_the_page_of_its_ranks() {
        let ranks = [recorder(30, 0., 5e6), recorder(31, 5e4, 1e6)];
        let all = gathered(ranks.map(|recorder| recorder.copy()).to_vec());
        let saved = SavedTrace::parse(trace::write_all(&all).as_bytes()).expect("a trace");
        let page = page::write(&all.ranks[0].recorder, "both", Some(&all));
        assert!(page.contains("the others waited"));
        assert_eq!(saved.page("both"), page);
    }

    /// Every other update waits for another rank.
    #[test]
    fn two_slow_ranks_share_the_blame() {
        let mut ranks = vec![recorder(100, 1e4, 0.); 3];
        for (rank, recorder) in ranks.iter_mut().enumerate() {
            for (at, row) in recorder.exchanges.done.rows.iter_mut().enumerate() {
                let is_slowest = rank == if at % 4 == 0 { 2 } else { 1 };
                row.waited = if is_slowest { 0. } else { 4e4 };
            }
        }
        let text = gathered(ranks).times.to_string();
        let expected = "rank 1 is the slowest: the others waited 30 % of the time for it, and 10 % for other ranks";
        assert_eq!(text, expected);
    }

    #[test]
    fn many_ranks_stay_small() {
        const MIB: usize = 1 << 20;
        let ranks: Vec<_> = (0..64)
            .map(|rank| recorder(1000, 1e3 * rank as f64, 0.))
            .collect();
        let own = ranks[0].clone();
        let all = gathered(ranks);
        let (page, trace) = (
            page::write(&own, "64 ranks", Some(&all)),
            trace::write_all(&all),
        );
        // A page of one process with as many steps has half a MiB.
        assert!(page.len() < 2 * MIB, "{}", page.len());
        assert!(trace.len() < 24 * MIB, "{}", trace.len());
        let sent = all
            .ranks
            .iter()
            .map(|rank| serde_json::to_vec(&rank.recorder));
        let sent = sent.map(|bytes| bytes.expect("a record").len()).max();
        assert!(sent < Some(MIB / 8), "{sent:?}");
    }
}
