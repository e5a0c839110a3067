use std::time::{Duration, Instant};

/// Time in which this process runs and looks at the clock.
///
/// A gap between two looks counts for at most a part of the timeout: a job whose processes were all suspended has not used up its patience when
/// they continue.
#[derive(Debug)]
pub(super) struct Clock {
    time: Duration,
    looked: Instant,
    /// How long to wait between two looks.
    pub(super) pause: Duration,
    /// The most that counts of the time between two looks.
    most: Duration,
}

impl Clock {
    /// A clock for waits of about this long.
    pub(super) fn new(timeout: Duration) -> Self {
        let pause = (timeout / 16).min(Duration::from_millis(100));
        Self {
            time: Duration::ZERO,
            looked: Instant::now(),
            pause,
            most: pause * 4,
        }
    }

    pub(super) fn now(&mut self) -> Duration {
        let now = Instant::now();
        self.time += (now - self.looked).min(self.most);
        self.looked = now;
        self.time
    }
}

/// The end of the time in which all ranks have to join.
#[derive(Debug)]
pub(crate) struct Deadline {
    clock: Clock,
    timeout: Duration,
}

impl Deadline {
    pub(crate) fn new(timeout: Duration) -> Self {
        let mut clock = Clock::new(timeout);
        // Looking up a name, or connecting to a machine that does not answer, takes long between two looks.
        clock.most = Duration::from_secs(30);
        Self { clock, timeout }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the time that is left, or `None` if it is over by `grace`.
    pub(crate) fn left(&mut self, grace: Duration) -> Option<Duration> {
        let left = (self.timeout + grace).checked_sub(self.clock.now())?;
        Some(left).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_gap_counts_for_a_part_of_the_timeout() {
        let mut clock = Clock::new(Duration::from_millis(400));
        for _ in 0..3 {
            clock.looked -= Duration::from_secs(10);
            clock.now();
        }
        assert_eq!(clock.time, Duration::from_millis(300));
        let mut deadline = Deadline::new(Duration::from_secs(40));
        deadline.clock.looked -= Duration::from_secs(3600);
        let left = deadline.left(Duration::ZERO).unwrap();
        assert!(left <= Duration::from_secs(10), "{left:?}");
        deadline.clock.looked -= Duration::from_secs(11);
        assert_eq!(deadline.left(Duration::ZERO), None);
        assert!(deadline.left(Duration::from_secs(20)).is_some());
    }
}
