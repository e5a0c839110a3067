//! A rank is killed at many moments of a job on 4 ranks, which then continues on fewer ranks, or as many.

use std::time::{Duration, Instant};

use crate::cases::{Case, RANKS, cases};
use crate::death::{At, Death};
use crate::job::{EVERY, Job, Outcome, UPDATES};
use crate::launch::is_rank;
use crate::points::Points;

impl Case {
    /// Kills the job, and continues it on `ranks` ranks, with a sharded optimizer or not. Says what went wrong.
    fn check(&self, double: bool, ranks: usize, wholes: &Wholes) -> Result<(), String> {
        let place = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
        let mut job = Job {
            double,
            is_wide: self.is_wide,
            in_background: self.in_background,
            is_sharded: self.deaths[0].step % 4 < 2,
            ..Job::new(place.path().to_owned())
        };
        for &death in &self.deaths {
            job.death = Some(death);
            let began = Instant::now();
            let (status, text) = job.start(RANKS);
            match status {
                None => return Err(format!("the job hangs: {text}")),
                Some(status) if status.success() => return Err("nobody died".to_owned()),
                Some(_) if began.elapsed() > Duration::from_secs(20) => {
                    return Err(format!("it took {:?} to end: {text}", began.elapsed()));
                }
                Some(_) => {}
            }
        }
        job.death = None;
        job.is_sharded ^= ranks != RANKS;
        let (status, text) = job.start(ranks);
        if !status.is_some_and(|status| status.success()) {
            return Err(format!("continued: {status:?}: {text}"));
        }
        let outcome = job.outcome();
        let (alone, together) = wholes.of(double, self.is_wide);
        if outcome.updates != UPDATES || outcome.history != alone.history {
            return Err(format!("other samples: {:?}", outcome.history));
        }
        let last = self.deaths[0].step.saturating_sub(1);
        if !self.in_background && outcome.resumed < last - last % EVERY {
            return Err(format!("continued from {}, not {last}", outcome.resumed));
        }
        // Sums over ranks are rounded in another order: some units in the last place of values below 1, over 10 updates.
        let most = if double { 1e-13 } else { 1e-6 };
        let distance = distance(&outcome, alone);
        if distance > most {
            return Err(format!("{distance:e} from a run in one process"));
        }
        match ranks == RANKS && outcome.values != together.values {
            true => Err(format!("other bits, by {:e}", distance)),
            false => Ok(()),
        }
    }
}

fn distance(a: &Outcome, b: &Outcome) -> f64 {
    assert_eq!(a.values.len(), b.values.len());
    let pairs = a.values.iter().zip(&b.values);
    pairs.map(|(a, b)| (a - b).abs()).fold(0., f64::max)
}

/// Runs that nothing interrupts, in one process and in all ranks, by type and width.
struct Wholes(Vec<((bool, bool), (Outcome, Outcome))>);

impl Wholes {
    fn new() -> Self {
        let kinds = [(false, false), (true, false), (false, true), (true, true)];
        let runs = kinds.map(|(double, is_wide)| {
            let places = [0, 1].map(|_| tempfile::tempdir().expect("a folder"));
            let [alone, together] = places.each_ref().map(|place| Job {
                double,
                is_wide,
                ..Job::new(place.path().to_owned())
            });
            let (status, text) = together.start(RANKS);
            assert!(status.is_some_and(|status| status.success()), "{text}");
            ((double, is_wide), (alone.alone(), together.outcome()))
        });
        Self(runs.into())
    }

    fn of(&self, double: bool, is_wide: bool) -> &(Outcome, Outcome) {
        let found = self.0.iter().find(|(kind, _)| *kind == (double, is_wide));
        &found.expect("a run").1
    }
}

/// Each sample comes once in each epoch, in batches that do not depend on the ranks.
fn check_history(whole: &Outcome) {
    for epoch in whole.history.chunks(UPDATES as usize / 2) {
        let mut all = epoch.concat();
        all.sort_unstable();
        assert_eq!(all, (0..23).collect::<Vec<_>>());
    }
}

#[test]
fn a_job_survives_every_kill() {
    if is_rank() {
        return Job::told().run().expect("a run");
    }
    let wholes = Wholes::new();
    check_history(&wholes.of(false, false).0);
    let cases = cases();
    let (mut points, mut kills, mut survived) = (0, 0, 0);
    for point in Points::chosen().of(cases.len() as u64) {
        let index = point as usize - 1;
        let case = &cases[index];
        let ranks = [3, RANKS, 2, 1, RANKS - 1][index % 5];
        let double = index % 3 == 2;
        points += 1;
        kills += case.deaths.len();
        match case.check(double, ranks, &wholes) {
            Ok(()) => survived += case.deaths.len(),
            Err(problem) => eprintln!("{:?}, continued on {ranks}: {problem}", case.deaths),
        }
    }
    Points::chosen().figures("distributed/kill", cases.len() as u64, points);
    println!("figure: distributed/kills_survived = {survived} of {kills}");
    assert_eq!(survived, kills);
}

/// A sharded job loses a rank again and again, and goes on with as many as there are then.
#[test]
fn a_sharded_job_goes_on_with_any_number_of_ranks() {
    if is_rank() {
        return Job::told().run().expect("a run");
    }
    let places = [0, 1].map(|_| tempfile::tempdir_in("/dev/shm").expect("a folder in memory"));
    let [mut job, whole] = places.each_ref().map(|place| Job {
        is_wide: true,
        ..Job::new(place.path().to_owned())
    });
    let whole = whole.alone();
    job.is_sharded = true;
    for (ranks, step) in [(4, 3), (2, 5), (3, 7)] {
        job.death = Some(Death {
            rank: 1,
            step,
            at: At::Forward,
        });
        let (status, text) = job.start(ranks);
        assert!(status.is_some_and(|it| !it.success()), "{text}");
        let part = format!(
            "run/step-{:09}/optimizer-rank-{:05}-of-{ranks:05}.safetensors",
            step - 1,
            ranks - 1
        );
        assert!(job.place.join(part).exists(), "{ranks} ranks: {text}");
    }
    job.death = None;
    let (status, text) = job.start(1);
    assert!(status.is_some_and(|it| it.success()), "{text}");
    let outcome = job.outcome();
    assert_eq!((outcome.resumed, outcome.updates), (6, UPDATES));
    assert_eq!(outcome.history, whole.history);
    assert!(distance(&outcome, &whole) < 1e-6);
}
