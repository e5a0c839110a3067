//! Batch policies that only do what a test needs.

use candle_headroom::batch::{BatchPolicy, Failed};

/// Halves its size at each failure and never grows.
#[derive(Debug)]
pub struct Halves(pub usize);

impl BatchPolicy for Halves {
    fn size(&self, remaining: usize) -> usize {
        self.0.min(remaining)
    }

    fn failed(&mut self, failed: &Failed<'_>) {
        self.0 = (failed.size / 2).max(1);
    }
}

/// Halves its size at each failure and returns to the whole after a success.
#[derive(Debug)]
pub struct Returns {
    whole: usize,
    now: usize,
}

impl Returns {
    pub fn to(whole: usize) -> Self {
        Self { whole, now: whole }
    }
}

impl BatchPolicy for Returns {
    fn size(&self, remaining: usize) -> usize {
        self.now.min(remaining)
    }

    fn succeeded(&mut self, _: &candle_headroom::batch::Completed) {
        self.now = self.whole;
    }

    fn failed(&mut self, failed: &Failed<'_>) {
        self.now = (failed.size / 2).max(1);
    }
}

/// Repeats given sizes.
#[derive(Debug)]
pub struct Schedule {
    sizes: Vec<usize>,
    next: usize,
}

impl Schedule {
    pub fn new(sizes: &[usize]) -> Self {
        Self {
            sizes: sizes.to_vec(),
            next: 0,
        }
    }
}

impl BatchPolicy for Schedule {
    fn size(&self, remaining: usize) -> usize {
        self.sizes.get(self.next).copied().unwrap_or(remaining)
    }

    fn succeeded(&mut self, _: &candle_headroom::batch::Completed) {
        self.next += 1;
    }

    fn failed(&mut self, _: &Failed<'_>) {}
}
