//! The order of samples, as the batches show it.

use candle_core::Tensor;
use candle_headroom::data::{Dataset, Loader, LoaderBuilder};
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

/// Samples that hold nothing, in blocks.
struct Blocks(Vec<usize>);

impl Dataset for Blocks {
    type Sample = ();

    fn len(&self) -> usize {
        self.0.last().copied().unwrap_or(0)
    }

    fn get(&self, _: usize) -> Result<(), BoxedError> {
        Ok(())
    }

    fn parts(&self) -> Vec<usize> {
        let half = self.0[self.0.len() / 2];
        vec![half, self.len() - half]
    }

    fn blocks(&self) -> Vec<usize> {
        self.0.clone()
    }
}

/// 400 blocks of 1 to 29 samples.
fn blocks() -> Blocks {
    let lengths = (0..400).map(|block| 1 + block * 7919 % 29);
    let ends = lengths.scan(0, |end, length| {
        *end += length;
        Some(*end)
    });
    Blocks(ends.collect())
}

fn by_blocks<D: Dataset<Sample = ()> + 'static>(dataset: D) -> LoaderBuilder<D, Vec<Tensor>> {
    let collate = |_: Vec<()>| -> Result<Vec<Tensor>, BoxedError> { Ok(Vec::new()) };
    Loader::builder(dataset, collate).shuffle(5).blocks(8)
}

fn drawn<D: Dataset<Sample = ()> + 'static>(builder: LoaderBuilder<D, Vec<Tensor>>) -> Vec<usize> {
    let loader = builder.batch(100).build().unwrap();
    loader.flat_map(|batch| batch.unwrap().indices).collect()
}

#[test]
fn the_samples_of_a_window_of_blocks_come_together_and_mixed() {
    let data = blocks();
    let (ends, len) = (data.0.clone(), data.len());
    let order = drawn(by_blocks(data).epochs(2));
    let block = |index: &usize| ends.partition_point(|end| end <= index);
    let (first, second) = order.split_at(len);
    assert_ne!(first, second);
    for epoch in [first, second] {
        let mut rest = epoch;
        let (mut far, mut steps) = (0, Vec::new());
        while !rest.is_empty() {
            let mut found = Vec::new();
            let is_of_window = |index: &&usize| {
                if !found.contains(&block(index)) {
                    found.push(block(index));
                }
                found.len() <= 8
            };
            let window = rest.iter().take_while(is_of_window).count();
            found.truncate(8);
            let samples: usize = found
                .iter()
                .map(|at| ends[*at] - if *at > 0 { ends[at - 1] } else { 0 })
                .sum();
            assert_eq!(
                (window, found.len()),
                (samples, 8),
                "a window is left with its last sample"
            );
            steps.extend(found.windows(2).map(|pair| pair[0].abs_diff(pair[1])));
            far += rest[..window]
                .windows(2)
                .filter(|pair| block(&pair[0]) != block(&pair[1]))
                .count();
            rest = &rest[window..];
        }
        // Blocks of a window come from anywhere, and a sample follows one of another block in 7 of 8 cases.
        assert!(steps.iter().sum::<usize>() > 90 * steps.len());
        assert!(far > len * 3 / 4, "{far} of {len}");
    }
}

/// In a mixture the blocks of each part stay together, and all places have the parts' shares.
#[test]
fn the_parts_of_a_mixture_keep_their_blocks() {
    let data = blocks();
    let (ends, parts, len) = (data.0.clone(), data.parts(), data.len());
    let order = drawn(by_blocks(data).mixture([3., 1.]).samples(2 * len));
    assert_eq!(order.len(), 2 * len);
    for places in order.chunks_exact(1024) {
        let of_first = places.iter().filter(|index| **index < parts[0]).count();
        assert!(of_first.abs_diff(768) <= 1, "{of_first}");
        let mut blocks: Vec<_> = places
            .iter()
            .map(|index| ends.partition_point(|end| end <= index))
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        // 1,024 samples are those of 70 blocks, and of parts of windows before and after.
        assert!(blocks.len() < 140, "{} blocks", blocks.len());
    }
}

#[test]
fn blocks_that_cannot_be_meant_are_refused() {
    let error = |ends: &[usize], window| {
        let built = by_blocks(Blocks(ends.into()))
            .blocks(window)
            .batch(2)
            .build();
        built.unwrap_err().to_string()
    };
    assert!(error(&[4, 9], 0).starts_with("`blocks` must be from 1 to "));
    for ends in [&[0, 9][..], &[4, 4, 9], &[7, 4, 9]] {
        let error = error(ends, 2);
        assert!(
            error.contains("the blocks of a dataset of 9 samples must"),
            "{error}"
        );
    }
    let collate = |_: Vec<()>| -> Result<Vec<Tensor>, BoxedError> { Ok(Vec::new()) };
    let built = Loader::builder(Many(9), collate).blocks(2).build();
    let error = built.unwrap_err().to_string();
    assert_eq!(error, "`blocks` is a way to shuffle: call `shuffle` too");
}

#[test]
fn a_position_of_other_blocks_is_refused() {
    let mut loader = by_blocks(Blocks(vec![4, 9, 12])).build().unwrap();
    loader.next().unwrap().unwrap();
    let position = loader.state();
    let same = by_blocks(Blocks(vec![4, 9, 12]))
        .build()
        .unwrap()
        .load_state(position);
    same.unwrap();
    let others = [
        by_blocks(Blocks(vec![4, 9, 12])).blocks(2),
        by_blocks(Blocks(vec![4, 10, 12])),
        by_blocks(Blocks(vec![4, 12])),
    ];
    for other in others {
        let error = other.build().unwrap().load_state(position).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("order: saved shuffled by 5, 8 of 3 blocks ("),
            "{error}"
        );
    }
}

/// However many samples and blocks there are, the order takes 10 MiB and a position is short.
#[test]
fn blocks_of_huge_datasets_are_merged() {
    let mut loader = by_blocks(Many(1 << 50))
        .batch(1000)
        .workers(0)
        .build()
        .unwrap();
    let mut indices = loader.next().unwrap().unwrap().indices;
    indices.sort_unstable();
    indices.dedup();
    assert_eq!(indices.len(), 1000);
    let mut blocks: Vec<_> = indices.iter().map(|index| index >> 32).collect();
    blocks.dedup();
    assert_eq!(blocks.len(), 8);
    let text = serde_json::to_string(loader.state()).unwrap();
    assert!(text.len() <= 240, "{text}");
}
