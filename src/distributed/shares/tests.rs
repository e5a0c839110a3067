//! Ranks whose times are made up.

use super::*;
use crate::mix::mix;

/// Ranks that take these times for a sample, with relative noise.
struct Cluster {
    paces: Vec<f64>,
    noise: f64,
    batch: usize,
    /// Updates so far, and changes of the division.
    updates: u64,
    changes: usize,
    shares: Shares,
}

impl Cluster {
    fn new(paces: &[f64], noise: f64, batch: usize) -> Self {
        Self {
            paces: paces.to_vec(),
            noise,
            batch,
            updates: 0,
            changes: 0,
            shares: Shares::builder(paces.len()).build().unwrap(),
        }
    }

    fn efforts(&self) -> Vec<Effort> {
        let parts = self.shares.division().parts(self.batch);
        let ranks = parts.iter().zip(&self.paces).enumerate();
        let effort = ranks.map(|(rank, (part, pace))| {
            // From a normal distribution, nearly: the sum of 12 uniform ones.
            let chances = (0..12).map(|n| mix(self.updates * 1000 + rank as u64 * 12 + n) as f64);
            let normal = chances.map(|chance| chance / u64::MAX as f64).sum::<f64>() - 6.;
            let seconds = part.len() as f64 * pace * (1. + self.noise * normal);
            Effort::new(part.len(), part.len(), seconds)
        });
        effort.collect()
    }

    fn run(&mut self, updates: u64) {
        for _ in 0..updates {
            let efforts = self.efforts();
            self.changes += usize::from(self.shares.observe(&efforts).unwrap());
            self.updates += 1;
        }
    }

    fn parts(&self) -> Vec<usize> {
        let parts = self.shares.division().parts(self.batch);
        parts.iter().map(ExactSizeIterator::len).collect()
    }

    /// The time of the slowest rank, relative to the best that is possible.
    fn waste(&self) -> f64 {
        let parts = self.parts();
        let times = parts
            .iter()
            .zip(&self.paces)
            .map(|(part, pace)| *part as f64 * pace);
        let speed: f64 = self.paces.iter().map(|pace| 1. / pace).sum();
        times.fold(0., f64::max) * speed / self.batch as f64 - 1.
    }
}

#[test]
fn a_rank_at_half_speed_gets_half_as_much_in_a_few_updates() {
    for noise in [0., 0.01, 0.05] {
        let mut cluster = Cluster::new(&[1., 2.], noise, 96);
        cluster.run(4);
        assert_eq!(cluster.changes, 1, "{noise}");
        // Four updates know the ratio to within three times their noise over two, of 96 * 2/9 samples for each unit.
        let off = cluster.parts()[0].abs_diff(64);
        assert!(off as f64 <= 1. + 32. * noise, "{:?}", cluster.parts());
        cluster.run(100);
        assert!(cluster.waste() < 0.06 + noise, "{:?}", cluster.parts());
    }
}

#[test]
fn noise_does_not_make_it_flap() {
    for paces in [&[1.; 2][..], &[1.; 8], &[1., 2., 1., 3., 1., 1., 2., 1.]] {
        let mut cluster = Cluster::new(paces, 0.1, 512);
        cluster.run(40);
        cluster.changes = 0;
        cluster.run(1000);
        assert!(
            cluster.changes <= 2,
            "{} changes among {paces:?}",
            cluster.changes
        );
        assert!(cluster.waste() < 0.2, "{:?}", cluster.parts());
    }
    // With equal ranks nothing happens at all.
    let mut equal = Cluster::new(&[1.; 8], 0.1, 512);
    equal.run(1000);
    assert_eq!(
        (equal.changes, equal.shares.division().is_equal()),
        (0, true)
    );
}

#[test]
fn a_rank_that_becomes_slow_is_followed_and_back() {
    let mut cluster = Cluster::new(&[1.; 8], 0.02, 800);
    cluster.run(50);
    cluster.paces[5] = 2.;
    // Two updates show it, one more measures it.
    cluster.run(4);
    assert_eq!(cluster.changes, 1);
    // 800 / 7.5 samples, and half of that.
    assert!(
        cluster.parts()[5].abs_diff(53) <= 4,
        "{:?}",
        cluster.parts()
    );
    cluster.paces[5] = 1.;
    cluster.run(60);
    assert!(cluster.waste() < 0.08, "{:?}", cluster.parts());
    assert!(cluster.changes <= 4, "{}", cluster.changes);
}

/// A part of the time that does not depend on the samples makes small parts look slower than they are.
#[test]
fn time_that_is_the_same_for_any_part_ends_in_balance() {
    let mut cluster = Cluster::new(&[1., 3.], 0.01, 400);
    let times = |cluster: &Cluster| {
        let parts = cluster.parts();
        [40. + parts[0] as f64, 40. + 3. * parts[1] as f64]
    };
    for _ in 0..100 {
        let mut efforts = cluster.efforts();
        efforts.iter_mut().for_each(|effort| effort.seconds += 40.);
        cluster.changes += usize::from(cluster.shares.observe(&efforts).unwrap());
        cluster.updates += 1;
    }
    let [a, b] = times(&cluster);
    // Within the gain that a change is worth, and the noise.
    assert!((a / b - 1.).abs() < 0.1, "{a} {b}");
    assert!(cluster.changes <= 6, "{}", cluster.changes);
}

/// A drift too slow for any two updates to stand out.
#[test]
fn drift_is_followed() {
    let mut cluster = Cluster::new(&[1., 1.], 0.01, 1000);
    for update in 0..400 {
        cluster.paces[1] = 1. + f64::from(update) / 200.;
        cluster.run(1);
        // The gain that is waited for, twice over: the average is behind by up to 16 updates.
        assert!(cluster.waste() < 0.12, "{update}: {:?}", cluster.parts());
    }
    assert!((5..40).contains(&cluster.changes), "{}", cluster.changes);
}

#[test]
fn one_slow_update_changes_nothing() {
    let mut cluster = Cluster::new(&[1., 1.], 0.01, 100);
    cluster.run(30);
    for _ in 0..5 {
        let mut efforts = cluster.efforts();
        efforts[1].seconds *= 20.;
        assert!(!cluster.shares.observe(&efforts).unwrap());
        cluster.run(10);
    }
    assert_eq!(cluster.changes, 0);
}

#[test]
fn what_is_no_measurement_does_not_count() {
    let mut shares = Shares::builder(2).interval(1).build().unwrap();
    for seconds in [f64::NAN, 0., -1., f64::INFINITY, f64::MIN_POSITIVE / 2.] {
        for _ in 0..10 {
            let efforts = [Effort::new(50, 50, seconds), Effort::new(50, 50, seconds)];
            assert!(!shares.observe(&efforts).unwrap());
        }
    }
    // No samples, no cost, and sums that overflow.
    for efforts in [
        [(0, 0), (0, 0)],
        [(5, 0), (5, 0)],
        [(usize::MAX, 1), (usize::MAX, 1)],
    ] {
        let efforts = efforts.map(|(samples, cost)| Effort::new(samples, cost, 1.));
        for _ in 0..10 {
            assert!(!shares.observe(&efforts).unwrap());
        }
    }
    // One rank was never measured: it is taken to be as fast as the slowest.
    let mut shares = Shares::builder(2).build().unwrap();
    for _ in 0..20 {
        let efforts = [Effort::new(50, 50, 1.), Effort::new(50, 50, f64::NAN)];
        assert!(!shares.observe(&efforts).unwrap());
    }
    let error = shares.observe(&[Effort::new(1, 1, 1.)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "shares of 2 ranks need as many measurements, got 1"
    );
}

#[test]
fn extreme_rates_leave_each_rank_a_sample() {
    let mut cluster = Cluster::new(&[1e-200, 1., 1e200], 0., 30);
    cluster.run(20);
    assert_eq!(cluster.parts(), [28, 1, 1]);
}

#[test]
fn a_batch_smaller_than_the_ranks_goes_to_the_fastest() {
    let mut cluster = Cluster::new(&[4., 1., 4., 1.], 0., 40);
    cluster.run(10);
    assert_eq!(cluster.parts(), [4, 16, 4, 16]);
    cluster.batch = 2;
    assert_eq!(cluster.parts(), [0, 1, 0, 1]);
    cluster.run(50);
    assert_eq!(cluster.parts().iter().sum::<usize>(), 2);
}

/// Times in which memory ran out do not count; what the rank sustains does.
#[test]
fn updates_in_which_memory_ran_out_do_not_count_by_their_time() {
    let mut shares = Shares::builder(2).build().unwrap();
    let failing = |sustained| Effort::new(50, 50, 500.).exhausted(sustained);
    for _ in 0..30 {
        let changed = shares
            .observe(&[Effort::new(50, 50, 1.), failing(None)])
            .unwrap();
        assert!(!changed);
    }
    for _ in 0..4 {
        shares
            .observe(&[Effort::new(50, 50, 1.), failing(Some(25.))])
            .unwrap();
    }
    assert_eq!(shares.division().parts(99), [0..66, 66..99]);
}

#[test]
fn equal_shares_stay_equal() {
    let mut shares = Shares::equal(2);
    for _ in 0..30 {
        let efforts = [Effort::new(50, 50, 1.), Effort::new(50, 50, 9.)];
        assert!(!shares.observe(&efforts).unwrap());
    }
    assert!(shares.division().is_equal());
}

/// Every rank computes the same, also one that was restarted from what another saved.
#[test]
fn saved_shares_go_on_bit_by_bit() {
    let mut cluster = Cluster::new(&[1., 1.3, 0.7], 0.08, 100);
    for _ in 0..60 {
        let text = serde_json::to_string(&cluster.shares).unwrap();
        assert!(text.len() < 500, "{text}");
        let mut restarted: Shares = serde_json::from_str(&text).unwrap();
        let efforts = cluster.efforts();
        restarted.observe(&efforts).unwrap();
        cluster.shares.observe(&efforts).unwrap();
        cluster.updates += 1;
        assert_eq!(restarted, cluster.shares);
    }
    assert!(!cluster.shares.division().is_equal());
}

#[test]
fn settings_that_cannot_be_meant_are_refused() {
    for builder in [
        Shares::builder(0),
        Shares::builder(2).interval(0),
        Shares::builder(2).least_gain(f64::NAN),
        Shares::builder(2).least_gain(-0.1),
        Shares::builder(2).least_gain(1.),
    ] {
        assert!(builder.build().is_err());
    }
}
