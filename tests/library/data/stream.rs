//! Samples that can only be read one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use candle_core::Tensor;
use candle_headroom::data::{Loader, Stream};
use candle_headroom::error::BoxedError;
use proptest::prelude::*;

use super::{collate, held};

type Items = Box<dyn Iterator<Item = Result<u32, BoxedError>> + Send>;

/// A stream of this length, with a seed, a buffer and a batch.
fn stream(len: u32, (seed, buffer): (u64, usize), batch: usize, workers: usize) -> Loader<Tensor> {
    let open = move |_epoch| -> Result<Items, BoxedError> { Ok(Box::new((0..len).map(Ok))) };
    let builder = Loader::builder(Stream(open), collate)
        .epochs(2)
        .batch(batch);
    builder
        .shuffle(seed)
        .buffer(buffer)
        .workers(workers)
        .build()
        .unwrap()
}

fn batches(loader: &mut Loader<Tensor>, most: usize) -> Vec<Vec<usize>> {
    loader
        .take(most)
        .map(|batch| held(&batch.unwrap()))
        .collect()
}

#[test]
fn a_buffer_mixes_within_its_size() {
    let mixed = batches(&mut stream(1000, (3, 100), 1000, 1), 1);
    let far = mixed[0]
        .iter()
        .enumerate()
        .map(|(place, number)| number.abs_diff(place));
    // A sample comes at most a buffer early, as a rule not far late.
    assert!(
        mixed[0]
            .iter()
            .enumerate()
            .all(|(place, number)| *number < place + 100)
    );
    assert!(far.sum::<usize>() > 1000 * 20);
    assert_ne!(mixed, batches(&mut stream(1000, (4, 100), 1000, 1), 1));
}

#[test]
fn a_resumed_stream_reads_its_epoch_again_once() {
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    let open = move |epoch: u64| -> Result<Items, BoxedError> {
        count.fetch_add(1, SeqCst);
        Ok(Box::new(
            (0..10).map(move |number| Ok(number + 100 * epoch as u32)),
        ))
    };
    let mut loader = Loader::builder(Stream(open), collate)
        .batch(4)
        .epochs(3)
        .workers(0)
        .build()
        .unwrap();
    let texts = |loader: &mut Loader<Tensor>, most: usize| -> Vec<Vec<u32>> {
        loader
            .take(most)
            .map(|batch| batch.unwrap().to_vec1().unwrap())
            .collect()
    };
    assert_eq!(
        texts(&mut loader, 4),
        [
            vec![0, 1, 2, 3],
            vec![4, 5, 6, 7],
            vec![8, 9],
            vec![100, 101, 102, 103]
        ]
    );
    let position = loader.state().clone();
    assert_eq!((position.epoch, position.samples), (1, 14));
    assert_eq!(opened.load(SeqCst), 2);
    assert_eq!(texts(&mut loader, 1), [[104, 105, 106, 107]]);
    loader.load_state(&position).unwrap();
    assert_eq!(
        texts(&mut loader, 2),
        [vec![104, 105, 106, 107], vec![108, 109]]
    );
    assert_eq!(opened.load(SeqCst), 3);
    // An epoch of its own ends where the stream ends.
    let counts: Vec<_> = loader.epochs().map(Iterator::count).collect();
    assert_eq!(counts, [0, 3]);
    assert!(loader.next().is_none());
    assert_eq!(opened.load(SeqCst), 4);
}

#[test]
fn ranks_share_each_batch() {
    let open = |_| -> Result<Items, BoxedError> { Ok(Box::new((0..10).map(Ok))) };
    let read = |rank| {
        let builder = Loader::builder(Stream(open), collate)
            .batch(4)
            .rank(rank, 2);
        batches(&mut builder.build().unwrap(), usize::MAX)
    };
    assert_eq!(read(0), [vec![0, 1], vec![4, 5], vec![8]]);
    assert_eq!(read(1), [vec![2, 3], vec![6, 7], vec![9]]);
}

#[test]
fn items_may_fail_and_panic() {
    let open = |_| -> Result<Items, BoxedError> {
        Ok(Box::new((0..6).map(|number| match number {
            1 => Err("torn".into()),
            4 => panic!("no more"),
            _ => Ok(number),
        })))
    };
    let builder = || {
        Loader::builder(Stream(open), collate)
            .name("torn stream")
            .batch(2)
    };
    let mut loader = builder().build().unwrap();
    let error = loader.next().unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "torn stream: sample 1 cannot be read: torn"
    );
    let mut loader = builder().skip_failures(2).build().unwrap();
    let read: Vec<_> = loader
        .by_ref()
        .map(|batch| batch.unwrap().to_vec1::<u32>().unwrap())
        .collect();
    // An item that fails keeps its place, so it shifts no other.
    assert_eq!(read, [vec![0], vec![2, 3], vec![5]]);
    assert_eq!(loader.state().samples, 6);
    assert_eq!(loader.stats().skipped, 2);

    let broken = |_| -> Result<Items, BoxedError> { Err("no network".into()) };
    let mut loader = Loader::builder(Stream(broken), collate).build().unwrap();
    let error = loader.next().unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "data: sample 0 cannot be read: no network"
    );
    // An empty stream does not turn forever.
    let empty = |_| -> Result<Items, BoxedError> { Ok(Box::new(std::iter::empty())) };
    let mut loader = Loader::builder(Stream(empty), collate)
        .endless()
        .build()
        .unwrap();
    assert_eq!(
        loader.next().unwrap().unwrap_err().to_string(),
        "data has no samples"
    );
}

#[test]
fn an_epoch_that_cannot_begin_fails_once() {
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    // Every other attempt fails.
    let open = move |_| -> Result<Items, BoxedError> {
        match count.fetch_add(1, SeqCst) % 2 {
            0 => Err("no network".into()),
            _ => Ok(Box::new((0..4).map(Ok))),
        }
    };
    let builder = || {
        Loader::builder(Stream(open.clone()), collate)
            .batch(2)
            .epochs(3)
    };
    let read = |loader: &mut Loader<Tensor>| -> Vec<_> {
        loader
            .map(|batch| batch.map(|batch| held(&batch)).ok())
            .collect()
    };
    let whole = [Some(vec![0, 1]), Some(vec![2, 3])];
    assert_eq!(
        read(&mut builder().build().unwrap()),
        [&[None][..], &whole, &[None]].concat()
    );
    assert_eq!(opened.swap(0, SeqCst), 3);
    // Tried again, nothing fails.
    assert_eq!(
        read(&mut builder().retries(1).build().unwrap()),
        [&whole[..], &whole, &whole].concat()
    );
}

#[test]
fn a_stream_is_not_left_unshuffled_silently() {
    let open = |_| -> Result<Items, BoxedError> { Ok(Box::new((0..4).map(Ok))) };
    let builder = || Loader::builder(Stream(open), collate);
    for builder in [
        builder().shuffle(1),
        builder().buffer(9),
        builder().shuffle(1).buffer(0),
    ] {
        assert!(builder.build().is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Items that fail at one time and not at another, before or after a resume, or on one of two ranks, lose only themselves.
    #[test]
    fn a_transient_failure_shifts_nothing(
        shuffle in proptest::option::of((any::<u64>(), 1_usize..9)),
        torn in [prop::collection::btree_set(0_u32..20, 0..6), prop::collection::btree_set(0_u32..20, 0..6)],
        stop in 0_usize..5,
        batch in 1_usize..7,
    ) {
        let build = |torn: &std::collections::BTreeSet<u32>, rank, ranks| {
            let torn = torn.clone();
            let open = move |_| -> Result<Items, BoxedError> {
                let torn = torn.clone();
                Ok(Box::new((0..20).map(move |number| match torn.contains(&number) {
                    true => Err("torn".into()),
                    false => Ok(number),
                })))
            };
            let builder = Loader::builder(Stream(open), collate).batch(batch).skip_failures(99).rank(rank, ranks);
            let builder = match shuffle {
                Some((seed, buffer)) => builder.shuffle(seed).buffer(buffer),
                None => builder,
            };
            builder.workers(0).build().unwrap()
        };
        let [before, after] = &torn;
        let whole = batches(&mut build(&Default::default(), 0, 1), usize::MAX);
        // Resumed in the middle, with other failures than before.
        let mut first = build(before, 0, 1);
        let mut read = batches(&mut first, stop).concat();
        let position = first.state().clone();
        let mut second = build(after, 0, 1);
        second.load_state(&position).unwrap();
        read.extend(batches(&mut second, usize::MAX).concat());
        let order = whole.concat();
        let (begin, end) = order.split_at((position.samples as usize).min(20));
        let left = |numbers: &[usize], torn: &std::collections::BTreeSet<u32>| -> Vec<usize> {
            numbers.iter().copied().filter(|number| !torn.contains(&(*number as u32))).collect()
        };
        prop_assert_eq!(read, [left(begin, before), left(end, after)].concat());

        // Two ranks, each with failures of its own: every batch comes to both.
        let mut ranks = [build(before, 0, 2), build(after, 1, 2)];
        for batch in &whole {
            let cut = batch.len() / 2;
            for (rank, part) in [&batch[..cut], &batch[cut..]].into_iter().enumerate() {
                let own = ranks[rank].next().unwrap().unwrap();
                prop_assert_eq!(held(&own), left(part, &torn[rank]));
                prop_assert_eq!(own.is_empty(), own.indices.is_empty());
            }
            prop_assert_eq!(ranks[0].state(), ranks[1].state());
        }
        prop_assert!(ranks.iter_mut().all(|rank| rank.next().is_none()));
    }
}
