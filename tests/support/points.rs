//! A choice among many points of failure.

/// The points at which something is made to fail: all, or by `HEADROOM_POINTS=K:FIRST` every `K`-th from `FIRST` on, in 0..K.
#[derive(Clone, Copy)]
pub struct Points {
    every: u64,
    first: u64,
}

impl Points {
    pub fn chosen() -> Self {
        let chosen = std::env::var("HEADROOM_POINTS").unwrap_or("all".to_owned());
        if chosen == "all" {
            return Self { every: 1, first: 0 };
        }
        let numbers = chosen.split_once(':');
        let numbers = numbers.and_then(|(k, first)| Some((k.parse().ok()?, first.parse().ok()?)));
        match numbers {
            Some((every, first)) if first < every => Self { every, first },
            _ => {
                panic!("HEADROOM_POINTS must be `all` or K:FIRST with FIRST below K, got {chosen}")
            }
        }
    }

    /// The chosen ones of the points 1 to `last`.
    pub fn of(self, last: u64) -> impl Iterator<Item = u64> {
        (1..=last).filter(move |point| point % self.every == self.first)
    }

    /// Prints how many points there are, and how many of them were tested.
    pub fn figures(self, what: &str, all: u64, tested: u64) {
        if self.every > 1 {
            println!(
                "every {}th of these points; HEADROOM_POINTS=all tests them all",
                self.every
            );
        }
        println!("figure: {what}_points = {all} points");
        println!("figure: {what}_points_tested = {tested} points");
    }
}
