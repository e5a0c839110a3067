//! Memory runs out on one rank, or on several, at every point of a step: the update is the same, and the others only wait.

use candle_core::DType;
use candle_headroom::batch::Halving;
use candle_headroom::distributed::Group;
use candle_headroom::error::{GroupError, Phase};
use candle_headroom::testing::Faults;
use candle_headroom::{AccumulatingTrainer, AdaptiveTrainer, Error, Sgd};

use crate::launch::together;
use crate::model::{Model, cut, data};

const WIDTHS: [usize; 3] = [6, 9, 3];
const SAMPLES: usize = 10;

struct Pair {
    alone: Model,
    one: AdaptiveTrainer<Sgd>,
    ours: Model,
    all: AdaptiveTrainer<Sgd>,
    /// A single sample fails twice.
    may_give_up: bool,
}

impl Pair {
    fn new(group: &Group) -> Self {
        let (alone, ours) = (
            Model::new(&WIDTHS, DType::F64, 3),
            Model::new(&WIDTHS, DType::F64, 3),
        );
        let sgd = |model: &Model| {
            Sgd::builder(&model.varmap)
                .learning_rate(0.3)
                .build()
                .expect("an optimizer")
        };
        let one = AdaptiveTrainer::builder(sgd(&alone))
            .build()
            .expect("a trainer");
        let all = AdaptiveTrainer::builder(sgd(&ours))
            .group(group)
            .policy(Halving::builder().start(2).build().expect("a policy"));
        let all = all.build().expect("a trainer");
        Self {
            alone,
            one,
            ours,
            all,
            may_give_up: false,
        }
    }

    /// A step of all ranks with these faults on this rank. Returns the points passed, and the faults that fired.
    fn step(&mut self, group: &Group, seed: u64, faults: Option<Faults>) -> (usize, usize) {
        let batch = data(SAMPLES, (WIDTHS[0], WIDTHS[2]), DType::F64, seed);
        // Rank 0 has the smaller share.
        let start = SAMPLES * group.rank() / (group.size() + 1);
        let end = match group.rank() + 1 == group.size() {
            true => SAMPLES,
            false => SAMPLES * (group.rank() + 1) / (group.size() + 1),
        };
        let own = cut(&batch, start..end);
        self.alone.copy(&self.ours);
        let armed = faults.unwrap_or(Faults::at(usize::MAX)).arm();
        let report = self.all.step(&own, |(x, y), _| self.ours.loss(&x, &y));
        let (points, fired) = (armed.points(), armed.fired());
        drop(armed);
        let before = self.alone.values();
        let is_done = report.is_ok();
        let all = group
            .gather(&[u8::from(is_done)])
            .expect("the ranks' outcomes");
        assert!(
            all.iter().all(|theirs| theirs == &[u8::from(is_done)]),
            "some updated, with faults at {faults:?}"
        );
        match report {
            Ok(report) => assert_eq!(report.samples, end - start),
            // One sample failed twice on some rank.
            Err(error) => {
                assert!(self.may_give_up, "with faults at {faults:?}: {error}");
                assert_eq!(self.ours.values(), before);
                return (points, fired);
            }
        }
        self.one
            .step(&batch, |(x, y), _| self.alone.loss(&x, &y))
            .expect("a step");
        let (expected, found) = (self.alone.values(), self.ours.values());
        let moved = expected
            .iter()
            .zip(&before)
            .map(|(a, b)| (a - b).abs())
            .fold(0., f64::max);
        let apart = expected
            .iter()
            .zip(&found)
            .map(|(a, b)| (a - b).abs())
            .fold(0., f64::max);
        // Each sample counts once: a lost or doubled one moves parameters by about a tenth of the update.
        assert!(
            apart <= 1e-13 * moved.max(1.),
            "{apart} of {moved} with faults at {faults:?}"
        );
        let bits: Vec<u8> = found.iter().flat_map(|value| value.to_le_bytes()).collect();
        let all = group.gather(&bits).expect("the ranks' parameters");
        assert!(
            all.iter().all(|theirs| *theirs == bits),
            "ranks differ with faults at {faults:?}"
        );
        (points, fired)
    }
}

/// Fails every point of a step on the ranks that `fails` names; returns how many were tested.
fn at_every_point(group: &Group, fails: impl Fn(usize) -> bool) -> usize {
    let mut pair = Pair::new(group);
    let (points, _) = pair.step(group, 0, None);
    let points = group
        .gather(&points.to_le_bytes())
        .expect("the ranks' points");
    let points = points
        .iter()
        .filter_map(|bytes| Some(usize::from_le_bytes(bytes.as_slice().try_into().ok()?)));
    let points = points.max().expect("ranks");
    let mut tested = 0;
    for point in 0..points {
        // A new one, whose policy has learned nothing from faults before.
        let mut pair = Pair::new(group);
        let faults = fails(group.rank()).then(|| Faults::at(point));
        let (_, fired) = pair.step(group, point as u64, faults);
        tested += fired;
        pair.step(group, 1, None);
    }
    let all = group
        .gather(&tested.to_le_bytes())
        .expect("the ranks' counts");
    let all = all
        .iter()
        .filter_map(|bytes| Some(usize::from_le_bytes(bytes.as_slice().try_into().ok()?)));
    all.sum()
}

#[test]
fn on_one_rank_while_the_other_does_not_fail() {
    together(2, |group| {
        let tested = at_every_point(group, |rank| rank == 1);
        assert!(tested > 30, "{tested}");
        if group.rank() == 0 {
            println!(
                "figure: distributed/exhaustion_points_tested = {tested} points (rank 1 of 2)"
            );
        }
    });
}

#[test]
fn on_all_ranks_at_once() {
    together(2, |group| {
        let tested = at_every_point(group, |_| true);
        assert!(tested > 30, "{tested}");
        if group.rank() == 0 {
            println!("figure: distributed/exhaustion_points_tested = {tested} points (both of 2)");
        }
    });
}

#[test]
fn on_two_of_four_ranks() {
    together(4, |group| {
        let tested = at_every_point(group, |rank| rank % 2 == 1);
        assert!(tested > 30, "{tested}");
        if group.rank() == 0 {
            println!("figure: distributed/exhaustion_points_tested = {tested} points (2 of 4)");
        }
    });
}

/// The second failure of a sample ends the step: on all ranks, or on none.
#[test]
fn twice_in_each_phase_before_the_ranks_have_agreed() {
    together(2, |group| {
        let phases = [
            Phase::Transfer,
            Phase::Forward,
            Phase::Backward,
            Phase::Accumulate,
            Phase::Reduce,
        ];
        let cases = phases
            .into_iter()
            .flat_map(|phase| (0..4).map(move |point| (phase, point)));
        let mut fired = 0;
        for (phase, point) in cases {
            let mut pair = Pair::new(group);
            pair.may_give_up = true;
            let faults = (group.rank() == 1).then(|| Faults::in_phase(phase, point).times(2));
            fired += pair.step(group, 0, faults).1;
            pair.may_give_up = false;
            pair.step(group, 1, None);
        }
        assert!(group.rank() == 0 || fired > 20, "{fired}");
    });
}

#[test]
fn a_sample_that_never_fits_on_one_rank_is_an_error_on_all_and_they_go_on() {
    together(3, |group| {
        let mut pair = Pair::new(group);
        let batch = data(9, (WIDTHS[0], WIDTHS[2]), DType::F64, 1);
        let own = cut(&batch, group.share(9));
        let before = pair.ours.values();
        let done = pair.all.step(&own, |(x, y), micro| {
            if group.rank() == 2 && micro.samples.contains(&1) {
                candle_core::bail!("CUDA_ERROR_OUT_OF_MEMORY")
            }
            pair.ours.loss(&x, &y)
        });
        match (group.rank(), done.expect_err("one sample does not fit")) {
            (2, Error::ResourceExhausted(exhausted)) => assert_eq!(exhausted.samples, Some(1..2)),
            (0 | 1, Error::Group(error)) => match *error {
                GroupError::PeerFailed {
                    rank: 2, reason, ..
                } => assert!(reason.contains("out of"), "{reason}"),
                other => panic!("{other}"),
            },
            (rank, error) => panic!("rank {rank}: {error}"),
        }
        assert_eq!(pair.ours.values(), before);
        pair.step(group, 2, None);
    });
}

/// The batches before are lost with the one that failed, on every rank, and none of them is in a later update.
#[test]
fn accumulated_batches_of_an_update_that_failed_are_dropped_on_all_ranks() {
    together(2, |group| {
        let mut pair = Pair::new(group);
        let batch = data(8, (WIDTHS[0], WIDTHS[2]), DType::F64, 1);
        let own = cut(&batch, group.share(8));
        pair.all
            .accumulate(&own, |(x, y), _| pair.ours.loss(&x, &y))
            .expect("a batch");
        let done = pair.all.step(&own, |(x, y), _| match group.rank() {
            1 => candle_core::bail!("on purpose"),
            _ => pair.ours.loss(&x, &y),
        });
        let error = done.expect_err("rank 1 failed");
        assert!(
            matches!(&error, Error::WindowLost(lost) if lost.samples == 4),
            "{error}"
        );
        assert_eq!((pair.all.samples(), pair.all.pending()), (0, 0));
        assert!(pair.all.update().expect("nothing to update").is_none());
        // Repeated, they have their numbers again, and with these their seeds.
        let mut numbers = Vec::new();
        for _ in 0..2 {
            let repeated = pair.all.accumulate(&own, |(x, y), micro| {
                numbers.push(micro.step);
                pair.ours.loss(&x, &y)
            });
            repeated.expect("a batch");
        }
        numbers.dedup();
        assert_eq!(numbers, [0, 1]);
        pair.all.update().expect("an update").expect("two batches");
        pair.step(group, 2, None);
    });
}

/// A batch that fails on one rank before the update is skipped there; the ranks still update together at each third batch.
#[test]
fn ranks_stay_in_step_if_a_batch_fails_before_the_update() {
    together(2, |group| {
        let model = Model::new(&WIDTHS, DType::F64, 3);
        let sgd = Sgd::builder(&model.varmap)
            .learning_rate(0.3)
            .build()
            .expect("an optimizer");
        let trainer = AccumulatingTrainer::builder(sgd, 3).group(group);
        let mut trainer = trainer.build().expect("a trainer");
        let mut updates = Vec::new();
        for batch in 0..9 {
            let own = data(2, (WIDTHS[0], WIDTHS[2]), DType::F64, batch);
            let done = trainer.step(&own, |(x, y), _| match (group.rank(), batch) {
                (1, 1) => candle_core::bail!("on purpose"),
                _ => model.loss(&x, &y),
            });
            match done {
                Ok(Some(report)) => updates.push((batch, report.exchange.map(|it| it.samples()))),
                Ok(None) => {}
                Err(error) => assert!((group.rank(), batch) == (1, 1), "{error}"),
            }
        }
        assert_eq!(updates, [(2, Some(10)), (5, Some(12)), (8, Some(12))]);
    });
}
