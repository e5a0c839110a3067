//! The order of samples, as the batches show it.

use candle_core::Tensor;
use candle_headroom::data::{Dataset, Loader};
use candle_headroom::error::BoxedError;
use proptest::prelude::*;

use super::{all, numbers};

/// Any number of samples that hold nothing.
struct Many(usize);

impl Dataset for Many {
    type Sample = ();

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, _: usize) -> Result<(), BoxedError> {
        Ok(())
    }
}

/// The first so many indices of an epoch of `len` samples.
fn first(len: usize, seed: u64, count: usize) -> Vec<usize> {
    let collate = |_: Vec<()>| -> Result<Vec<Tensor>, BoxedError> { Ok(Vec::new()) };
    let builder = Loader::builder(Many(len), collate).shuffle(seed);
    let mut loader = builder.batch(count).workers(0).build().unwrap();
    loader.next().unwrap().unwrap().indices
}

proptest! {
    #[test]
    fn every_sample_comes_once(len in 1_usize..2000, seed: u64) {
        let mut seen = first(len, seed, len);
        seen.sort_unstable();
        prop_assert!(seen.into_iter().eq(0..len));
    }

    #[test]
    fn huge_orders_stay_within(len in 1_usize << 40..usize::MAX / 2, seed: u64) {
        let seen = first(len, seed, 3);
        prop_assert!(seen.iter().all(|index| *index < len), "{seen:?}");
    }
}

/// Over many seeds each sample comes to each place about equally often.
#[test]
fn orders_are_uniform() {
    for len in [2, 3, 5, 12, 33] {
        let mut counts = vec![vec![0_u64; len]; len];
        for seed in 0..400 * len as u64 {
            for (place, index) in first(len, seed, len).into_iter().enumerate() {
                counts[place][index] += 1;
            }
        }
        // Each count is binomial with a mean of 400 and a deviation of less than 20.
        for count in counts.concat() {
            assert!((290..=510).contains(&count), "{count} of 400 for {len}");
        }
    }
}

/// Neighbours do not stay neighbours.
#[test]
fn neighbours_are_parted() {
    let order = first(1 << 20, 7, 100_001);
    let pairs = order.windows(2);
    let close = pairs.filter(|pair| pair[0].abs_diff(pair[1]) < 1000);
    // By chance about 0.2 % of the pairs.
    assert!((100..300).contains(&close.count()));
}

#[test]
fn epochs_differ_and_repeat() {
    let epochs = || {
        let builder = numbers(1000).shuffle(1).batch(1000).epochs(2);
        all(&mut builder.build().unwrap())
    };
    let order = epochs();
    assert_eq!(order, epochs());
    let same = order[0].iter().zip(&order[1]).filter(|(a, b)| a == b);
    assert!(same.count() < 10);
    let stored = all(&mut numbers(1000).batch(1000).epochs(2).build().unwrap());
    assert!(stored.iter().all(|epoch| epoch.iter().copied().eq(0..1000)));
}
