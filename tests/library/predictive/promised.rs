//! The numbers of promise 7, on a line with nothing but the policy: how far it reaches, and when it tries again what has failed.

use candle_headroom::batch::{BatchPolicy, Completed, Extent, Failed};
use candle_headroom::error::{Cause, MemoryReading, Resource};
use candle_headroom::{Predictive, ResourceExhausted};

/// A policy, and micro-batches that take `base` bytes and `each` for each sample.
struct Line {
    policy: Predictive,
    samples: usize,
    base: u64,
    each: u64,
    limit: u64,
}

impl Line {
    fn new(samples: usize, base: u64, each: u64, limit: u64) -> Self {
        let mut policy = Predictive::default();
        policy.begin(&Extent::new(samples, samples));
        Self {
            policy,
            samples,
            base,
            each,
            limit,
        }
    }

    fn now(&self) -> MemoryReading {
        let mut now = MemoryReading::default();
        (now.in_use, now.limit) = (Some(0), Some(self.limit));
        now
    }

    /// The size that the next micro-batch of a batch has.
    fn next(&mut self) -> usize {
        let now = self.now();
        self.policy.prepare(&now);
        self.policy.size(self.samples)
    }

    /// Runs a micro-batch, and returns its size.
    fn run(&mut self) -> usize {
        let size = self.next();
        let mut completed = Completed::new(size);
        (completed.before, completed.limit) = (Some(0), Some(self.limit));
        completed.peak = Some(self.base + self.each * size as u64);
        self.policy.succeeded(&completed);
        size
    }

    /// The whole batch does not fit although it should.
    fn fail(&mut self, is_passing: bool) {
        let mut exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::Unknown);
        exhausted.bytes = self.now();
        let failed = Failed::new(self.samples, &exhausted).passing(is_passing);
        self.policy.failed(&failed);
    }

    /// How many micro-batches run until the whole batch is one again.
    fn until_whole(&mut self) -> usize {
        (0..100_000)
            .find(|_| self.run() == self.samples)
            .expect("a ratchet")
    }
}

/// At most eight times the largest size, and from a single size sixteen times, however much room there is.
#[test]
fn it_reaches_eight_times_as_far_and_from_one_size_sixteen_times() {
    let mut line = Line::new(1 << 20, 1000, 10, 1 << 50);
    let sizes: Vec<_> = (0..12).map(|_| line.run()).collect();
    assert_eq!(sizes[0], 1, "what is allocated once is not known");
    for (at, pair) in sizes.windows(2).enumerate() {
        // The first observation counts until there is a second.
        let most = if at < 2 { 16 } else { 8 };
        assert!(pair[1] <= most * pair[0], "{sizes:?}");
    }
    assert_eq!(sizes[11], 1 << 20, "{sizes:?}");
}

/// One sample may be nearly all base. Two are tried at once if a sixteenth of the room is left, and otherwise after 128 micro-batches.
#[test]
fn after_one_sample_it_tries_two() {
    let mut roomy = Line::new(64, 895, 5, 1000);
    let sizes: Vec<_> = (0..4).map(|_| roomy.run()).collect();
    assert!(sizes.contains(&2), "{sizes:?}");
    let mut tight = Line::new(64, 935, 5, 1000);
    let sizes: Vec<_> = (0..140).map(|_| tight.run()).collect();
    assert_eq!(sizes[..120], [1; 120]);
    assert!(sizes.contains(&2), "{sizes:?}");
}

/// Half of the way up after so many micro-batches, and the rest after as many again; four times as many after another failure.
#[test]
fn a_size_that_failed_is_tried_again_after_128_micro_batches_and_then_512() {
    let mut line = Line::new(64, 100, 10, 1_000_000);
    assert!(line.until_whole() < 10);
    for patience in [128, 512, 2048] {
        line.fail(false);
        let waited = line.until_whole();
        assert!(
            (patience..=3 * patience).contains(&waited),
            "{waited} of {patience}"
        );
    }
}

#[test]
fn a_failure_that_others_caused_is_forgotten_after_16_to_128() {
    let mut line = Line::new(64, 100, 10, 1_000_000);
    line.until_whole();
    for _ in 0..6 {
        line.fail(true);
        let waited = line.until_whole();
        assert!((16..=3 * 128).contains(&waited), "{waited}");
    }
}

#[test]
fn room_that_has_grown_by_a_sixteenth_lifts_a_failure() {
    for (limit, is_lifted) in [(1_060_000, false), (1_065_000, true)] {
        let mut line = Line::new(64, 100, 10, 1_000_000);
        line.until_whole();
        line.fail(false);
        assert!(line.next() < 64);
        line.limit = limit;
        assert_eq!(line.next() == 64, is_lifted, "{limit}");
    }
}
