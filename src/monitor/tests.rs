//! A monitor without threads and with clocks of the test's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::keeper::{Keeper, Outlets, following};
use super::record::Record;
use super::sink::{Outlet, Sink};
use super::source::{Clock, Look, Source};
use super::watched::Watched;
use super::{Health, Sample, Threshold};

/// Clocks that stand still until the test moves them.
#[derive(Debug, Clone)]
struct Clocks(Arc<Mutex<(Duration, SystemTime)>>);

impl Clocks {
    fn new() -> Self {
        Self(Arc::new(Mutex::new((Duration::ZERO, UNIX_EPOCH))))
    }

    fn pass(&self, time: Duration) {
        let mut clocks = self.0.lock();
        clocks.0 += time;
        clocks.1 += time;
    }
}

impl Clock for Clocks {
    fn elapsed(&self) -> Duration {
        self.0.lock().0
    }

    fn wall(&self) -> SystemTime {
        self.0.lock().1
    }
}

/// A GPU that warms up and cools down over a day, and is away for a minute of each hour.
struct Day;

impl Look for Day {
    fn look(&mut self, sample: &mut Sample) {
        let seconds = sample.at.as_secs();
        if seconds % 3600 < 60 && seconds >= 3600 {
            sample.health = Health::Lost;
            return;
        }
        sample.total = Some(100);
        sample.used = Some(seconds % 100);
        // Trembling by a degree around a slow wave.
        let wave = (seconds as f64 / 86_400. * std::f64::consts::TAU * 4.).sin() * 30. + 60.;
        sample.temperature = Some(wave as u64 + seconds % 2);
    }
}

fn keeper(
    looker: impl Look + 'static,
    clocks: &Clocks,
    history: usize,
    outlets: Outlets,
) -> Keeper {
    let record = Record::new(vec![gpu()], history).unwrap();
    let interval = Duration::from_millis(100);
    let lookers: Vec<Box<dyn Look>> = vec![Box::new(looker)];
    Keeper::new(record, lookers, clocks.clone(), interval, outlets)
}

fn gpu() -> Source {
    Source {
        name: "GPU".to_owned(),
        uuid: None,
        cuda: None,
    }
}

#[test]
fn a_day_at_10_hertz() {
    let clocks = Clocks::new();
    let rings = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&rings);
    let count = Box::new(move |_: &super::Crossing<'_>| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let outlets = Outlets {
        watched: vec![Watched::new(Threshold::temperature(80), count, 1)],
        sinks: Vec::new(),
    };
    let keeper = keeper(Day, &clocks, 600, outlets);
    for _ in 0..24 * 3600 * 10 {
        assert!(keeper.round(0));
        clocks.pass(Duration::from_millis(100));
    }
    let history = keeper.record.rings.lock();
    assert_eq!(history[0].len(), 600);
    assert!(history[0].capacity() < 1024, "it has not grown");
    assert_eq!(
        history[0].back().unwrap().at,
        Duration::from_millis(86_399_900)
    );
    // Four waves a day: over it and back four times, however it trembled and although it was away at times.
    assert_eq!(rings.load(Ordering::Relaxed), 8);
}

#[test]
fn a_clock_that_jumps_changes_nothing_but_what_it_shows() {
    let clocks = Clocks::new();
    let keeper = keeper(Day, &clocks, 10, Outlets::default());
    clocks.0.lock().1 = UNIX_EPOCH + Duration::from_secs(1_000_000);
    assert!(keeper.round(0));
    clocks.pass(Duration::from_millis(100));
    // Before 1970, as a machine without a battery starts.
    clocks.0.lock().1 = UNIX_EPOCH - Duration::from_secs(5);
    assert!(keeper.round(0));
    let history = keeper.record.rings.lock();
    assert!(history[0][0].taken > history[0][1].taken);
    assert!(history[0][0].at < history[0][1].at);
    assert_eq!(history[0][1].unix_milliseconds(), 0);
}

#[test]
fn what_was_slept_through_is_not_made_up_for() {
    let ms = Duration::from_millis;
    assert_eq!(following(ms(100), ms(10), ms(101)), ms(110));
    assert_eq!(following(ms(100), ms(10), ms(110)), ms(120));
    // Suspended for an hour: the next moment of the same grid.
    assert_eq!(following(ms(100), ms(10), ms(3_600_105)), ms(3_600_110));
    let long = Duration::from_secs(u64::MAX / 4);
    assert!(
        following(ms(0), Duration::from_nanos(1), long) > ms(0),
        "it does not overflow"
    );
}

#[test]
fn a_sink_that_fails_is_tried_again_and_counted() {
    #[derive(Debug)]
    struct Every(u64);
    impl Sink for Every {
        fn write(&mut self, _: &Source, _: &Sample) -> std::io::Result<()> {
            self.0 += 1;
            match self.0 % 3 {
                0 => Ok(()),
                _ => Err(std::io::ErrorKind::StorageFull.into()),
            }
        }
    }
    let clocks = Clocks::new();
    let outlets = Outlets {
        watched: Vec::new(),
        sinks: vec![Outlet::new(Every(0))],
    };
    let keeper = keeper(Day, &clocks, 10, outlets);
    (0..30).for_each(|_| assert!(keeper.round(0)));
    assert_eq!(keeper.failed_writes.load(Ordering::Relaxed), 20);
}

#[test]
fn a_sink_that_panics_is_dropped_and_what_it_lost_is_counted() {
    #[derive(Debug)]
    struct Third(Arc<AtomicU64>);
    impl Sink for Third {
        fn write(&mut self, _: &Source, _: &Sample) -> std::io::Result<()> {
            let calls = self.0.fetch_add(1, Ordering::Relaxed);
            assert!(calls < 2, "a sink of the test's own");
            Ok(())
        }
    }
    let clocks = Clocks::new();
    let calls = Arc::new(AtomicU64::new(0));
    let outlets = Outlets {
        watched: Vec::new(),
        sinks: vec![Outlet::new(Third(Arc::clone(&calls)))],
    };
    let keeper = keeper(Day, &clocks, 10, outlets);
    (0..10).for_each(|_| assert!(keeper.round(0), "the monitor goes on"));
    assert_eq!(calls.load(Ordering::Relaxed), 3, "not called again");
    assert_eq!(Arc::strong_count(&calls), 1, "dropped");
    assert_eq!(keeper.failed_writes.load(Ordering::Relaxed), 8);
}

/// A GPU that takes its time; another thread is on duty when it answers.
struct Slow {
    time: Duration,
    clocks: Clocks,
    keeper: Arc<Mutex<Option<Arc<Keeper>>>>,
}

impl Look for Slow {
    fn look(&mut self, sample: &mut Sample) {
        let keeper = self.keeper.lock().take().unwrap();
        self.clocks.pass(self.time);
        keeper.duty.lock().turn += 1;
        sample.total = Some(100);
    }
}

#[test]
fn what_comes_late_is_the_next_sample_and_what_comes_too_late_is_not() {
    for (seconds, is_worth) in [(2, true), (3600, false)] {
        let clocks = Clocks::new();
        let place = Arc::new(Mutex::new(None));
        let slow = Slow {
            time: Duration::from_secs(seconds),
            clocks: clocks.clone(),
            keeper: Arc::clone(&place),
        };
        let keeper = Arc::new(keeper(slow, &clocks, 10, Outlets::default()));
        *place.lock() = Some(Arc::clone(&keeper));
        assert!(!keeper.round(0), "another thread has gone on");
        clocks.pass(Duration::from_secs(1));
        *place.lock() = Some(Arc::clone(&keeper));
        assert_eq!(keeper.round(1), is_worth, "it is asked anew otherwise");
        drop(place.lock().take());
        let samples = keeper.record.of(0);
        let seen = samples.first().map(|sample| (sample.total, sample.took));
        let late = (Some(100), Duration::from_secs(seconds));
        assert_eq!(seen, is_worth.then_some(late));
        let at = samples.first().map(|sample| sample.at);
        assert_eq!(at, is_worth.then_some(Duration::from_secs(seconds + 1)));
    }
}
