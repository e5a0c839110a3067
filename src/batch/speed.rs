//! How fast batches were by the size of their micro-batches. It is shown and decides nothing: a person may then bound the size.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How fast batches with micro-batches of one size were.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Speed {
    /// The size of the micro-batches, in samples.
    pub size: usize,
    /// Samples a second, from the beginning of a batch to its end on the host. On a GPU a batch ends when its work is queued; these are the
    /// device's own times once its queue is full.
    pub samples_per_second: f64,
}

/// What was measured, by size. The first batch of a size does not count: it allocates what later ones use again.
#[derive(Debug, Default)]
pub(super) struct Speeds {
    /// By size, the samples of all batches but the first, and their time.
    sizes: HashMap<usize, (usize, Duration)>,
    /// The size of the last batch.
    last: usize,
}

impl Speeds {
    /// Notes a batch of which nothing failed. One with micro-batches of several sizes, but for a smaller last one, says nothing about a size.
    pub(super) fn note(&mut self, sizes: &[usize], took: Duration) {
        let Some((size, rest)) = sizes.split_first() else {
            return;
        };
        self.last = *size;
        let is_even = match rest.split_last() {
            Some((last, between)) => last <= size && between.iter().all(|other| other == size),
            None => true,
        };
        if !is_even {
            return;
        }
        match self.sizes.get_mut(size) {
            Some((samples, time)) => {
                *samples += sizes.iter().sum::<usize>();
                *time += took;
            }
            None => _ = self.sizes.insert(*size, (0, Duration::ZERO)),
        }
    }

    /// Returns the fastest size so far if the last batch had another; the larger of two that are equally fast.
    pub(super) fn faster(&self) -> Option<Speed> {
        let known = self.sizes.iter().filter(|(_, (_, took))| !took.is_zero());
        let speeds = known.map(|(&size, &(samples, took))| Speed {
            size,
            samples_per_second: samples as f64 / took.as_secs_f64(),
        });
        let fastest = speeds.max_by(|a, b| {
            let by_speed = a.samples_per_second.total_cmp(&b.samples_per_second);
            by_speed.then(a.size.cmp(&b.size))
        });
        fastest.filter(|fastest| fastest.size != self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_size_is_that_with_the_most_samples_a_second() {
        let (mut speeds, second) = (Speeds::default(), Duration::from_secs(1));
        assert_eq!(speeds.faster(), None);
        for (sizes, seconds) in [
            (&[8, 8][..], 9), // the first of its size
            (&[8, 8], 2),     // 8 samples a second
            (&[4, 4, 4, 4], 9),
            (&[4, 4, 4, 4], 1), // 16, with a last one that is smaller below
            (&[4, 4, 1], 1),    // 9: 12.5 in all
            (&[16], 1),
            (&[2, 8], 0), // of several sizes
            (&[2, 2, 8], 0),
            (&[], 1),
        ] {
            speeds.note(sizes, second * seconds);
        }
        let faster = speeds
            .faster()
            .expect("the last batch began with 2 samples");
        assert_eq!((faster.size, faster.samples_per_second), (4, 12.5));
        // As fast, and larger: the last batch had it.
        speeds.note(&[16, 9], second * 2);
        assert_eq!(speeds.faster(), None);
        speeds.note(&[8, 8], second * 2);
        assert_eq!(speeds.faster().map(|faster| faster.size), Some(16));
    }
}
