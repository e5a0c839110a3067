use std::time::Duration;

use super::host_update::HostUpdate;

/// Updates of each kind that count, after one that does not.
const COUNTED: usize = 3;

/// The choice between the device and the host's cores.
#[derive(Debug, Clone)]
pub struct Choice {
    asked: HostUpdate,
    device: Times,
    cores: Times,
}

#[derive(Debug, Clone, Default)]
struct Times {
    measured: usize,
    counted: [Duration; COUNTED],
}

impl Choice {
    pub fn new(asked: HostUpdate) -> Self {
        Self {
            asked,
            device: Times::default(),
            cores: Times::default(),
        }
    }

    /// What is decided: `Fastest` for nothing yet.
    pub fn decided(&self) -> HostUpdate {
        match (self.asked, self.times()) {
            (HostUpdate::Fastest, [Some(device), Some(cores)]) if cores < device => {
                HostUpdate::Cores
            }
            (HostUpdate::Fastest, [Some(_), Some(_)]) => HostUpdate::Device,
            (asked, _) => asked,
        }
    }

    /// Whether the next update is one by the host's cores.
    pub fn next_is_by_cores(&self) -> bool {
        match self.decided() {
            HostUpdate::Fastest => self.cores.measured < self.device.measured,
            decided => decided == HostUpdate::Cores,
        }
    }

    /// The medians of the device's times and the cores'.
    pub fn times(&self) -> [Option<Duration>; 2] {
        [self.device.median(), self.cores.median()]
    }

    pub fn record(&mut self, by_cores: bool, time: Duration) {
        let times = if by_cores {
            &mut self.cores
        } else {
            &mut self.device
        };
        if let Some(place) = times.measured.checked_sub(1)
            && let Some(counted) = times.counted.get_mut(place)
        {
            *counted = time;
        }
        times.measured += 1;
    }

    /// Whether the user has left it open.
    pub fn is_free(&self) -> bool {
        self.asked == HostUpdate::Fastest
    }

    /// Decides for the device.
    pub fn rule_out_cores(&mut self) {
        self.asked = HostUpdate::Device;
    }
}

impl Times {
    fn median(&self) -> Option<Duration> {
        let mut sorted = self.counted;
        sorted.sort_unstable();
        let [_, median, _] = sorted;
        (self.measured > COUNTED).then_some(median)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is decided after updates of these milliseconds, and the turns that they took.
    fn decide(device: [u64; 4], cores: [u64; 4]) -> (Choice, String) {
        let mut choice = Choice::new(HostUpdate::Fastest);
        assert!(choice.is_free());
        let (mut left, mut turns) = ([device.into_iter(), cores.into_iter()], String::new());
        while choice.decided() == HostUpdate::Fastest {
            let by_cores = choice.next_is_by_cores();
            let time = left[usize::from(by_cores)].next().unwrap();
            choice.record(by_cores, Duration::from_millis(time));
            turns.push(if by_cores { 'c' } else { 'd' });
        }
        (choice, turns)
    }

    #[test]
    fn the_faster_median_wins() {
        // The first of each does not count, and neither does one that is far off.
        let (choice, turns) = decide([1, 9, 8, 900], [900, 5, 1, 6]);
        assert_eq!(turns, "dcdcdcdc");
        assert_eq!(choice.decided(), HostUpdate::Cores);
        assert_eq!(
            choice.times(),
            [9, 5].map(|t| Some(Duration::from_millis(t)))
        );
        assert!(choice.next_is_by_cores());
        let (choice, _) = decide([900, 5, 1, 6], [1, 9, 8, 900]);
        assert_eq!(choice.decided(), HostUpdate::Device);
        assert!(!choice.next_is_by_cores());
        // Equal times leave the way that does not wait.
        assert_eq!(decide([3; 4], [3; 4]).0.decided(), HostUpdate::Device);
    }

    #[test]
    fn what_is_asked_for_is_not_measured() {
        for (asked, by_cores) in [(HostUpdate::Device, false), (HostUpdate::Cores, true)] {
            let mut choice = Choice::new(asked);
            assert_eq!(
                (choice.decided(), choice.next_is_by_cores()),
                (asked, by_cores)
            );
            choice.rule_out_cores();
            assert_eq!(choice.decided(), HostUpdate::Device);
        }
    }
}
