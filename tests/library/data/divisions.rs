//! Ranks that are given unequal parts of the batches, while they read ahead.

use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::Tensor;
use candle_headroom::batch::{Batch, Division};
use candle_headroom::data::{Items, Loader, Pack, Position, Stream};
use candle_headroom::error::BoxedError;
use proptest::prelude::*;

use super::interruptions::{Settings, settings};
use super::{all, collate, held, numbers};

type Numbers = Box<dyn Iterator<Item = Result<u32, BoxedError>> + Send>;

/// Loaders of all ranks, which read ahead with different numbers of threads.
fn ranks(settings: &Settings, workers: &[usize]) -> Vec<Loader<Tensor>> {
    let ranks = workers.len();
    let build = |(rank, workers): (usize, &usize)| {
        let builder = settings.builder().workers(*workers).ahead(rank + 1);
        builder.rank(rank, ranks).build().unwrap()
    };
    workers.iter().enumerate().map(build).collect()
}

fn divide(loaders: &mut [Loader<Tensor>], weights: &[usize]) {
    for loader in loaders {
        loader
            .divide(&Division::weighted(weights).unwrap())
            .unwrap();
    }
}

/// The next batch of each rank; `None` at the end, which comes to all at once.
fn next(loaders: &mut [Loader<Tensor>]) -> Option<Vec<Vec<usize>>> {
    let shares: Vec<_> = loaders.iter_mut().map(Loader::next).collect();
    if shares.iter().all(Option::is_none) {
        return None;
    }
    let shares = shares
        .into_iter()
        .map(|share| held(&share.expect("ranks end together").unwrap()));
    Some(shares.collect())
}

fn text(loader: &Loader<Tensor>) -> String {
    serde_json::to_string(loader.state()).unwrap()
}

fn resume(loaders: &mut [Loader<Tensor>], text: &str) {
    let position: Position = serde_json::from_str(text).unwrap();
    for loader in loaders {
        loader.load_state(&position).unwrap();
    }
}

/// Weights of up to four ranks, not all 0, and after how many batches they come.
fn changes() -> impl Strategy<Value = Vec<(usize, [usize; 4])>> {
    let weights = [0_usize..9, 0..9, 0..9, 0..9].prop_map(|[a, b, c, d]| [a + 1, b, c, d]);
    prop::collection::vec((0_usize..12, weights), 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn each_sample_comes_once_however_batches_are_divided(
        settings in settings(),
        workers in prop::collection::vec(0_usize..3, 1..5),
        other_workers in prop::collection::vec(0_usize..2, 1..5),
        changes in changes(),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 3),
    ) {
        let expected = all(&mut settings.builder().workers(0).build().unwrap());
        let mut loaders = ranks(&settings, &workers);
        // The parts of each batch, the position after it, and the batches before a change.
        let (mut batches, mut positions) = (Vec::new(), vec![text(&loaders[0])]);
        let mut ends = Vec::new();
        let mut changes = changes.into_iter();
        let mut change = changes.next();
        let mut since = 0;
        loop {
            while let Some((_, weights)) = change.filter(|(after, _)| *after <= since) {
                divide(&mut loaders, &weights[..workers.len()]);
                positions[batches.len()] = text(&loaders[0]);
                ends.push(batches.len());
                (change, since) = (changes.next(), 0);
            }
            let Some(parts) = next(&mut loaders) else { break };
            since += 1;
            batches.push(parts);
            positions.push(text(&loaders[0]));
            for loader in &loaders {
                prop_assert_eq!(&text(loader), &positions[batches.len()]);
            }
        }
        ends.push(batches.len());
        let whole: Vec<_> = batches.iter().map(|parts| parts.concat()).collect();
        prop_assert_eq!(&whole, &expected);

        for pick in picks {
            let at = pick.index(positions.len());
            // Among as many ranks, each gets the same parts again.
            let mut again = ranks(&settings, &workers);
            resume(&mut again, &positions[at]);
            let end = ends.iter().copied().find(|end| *end > at).unwrap_or(at);
            for parts in &batches[at..end] {
                prop_assert_eq!(&next(&mut again).unwrap(), parts);
            }
            // Among others, the rest of the batches comes all the same.
            let mut others = ranks(&settings, &other_workers);
            resume(&mut others, &positions[at]);
            let rest: Vec<_> = std::iter::from_fn(|| next(&mut others)).map(|parts| parts.concat()).collect();
            prop_assert_eq!(&rest[..], &expected[at..]);
        }
    }
}

fn plain(len: usize, workers: &[usize]) -> Vec<Loader<Tensor>> {
    let ranks = workers.len();
    let build = |(rank, workers): (usize, &usize)| {
        let builder = numbers(len).batch(6).epochs(2).workers(*workers);
        builder.rank(rank, ranks).build().unwrap()
    };
    workers.iter().enumerate().map(build).collect()
}

fn sizes(parts: &[Vec<usize>]) -> Vec<usize> {
    parts.iter().map(Vec::len).collect()
}

#[test]
fn the_next_batch_is_divided_whatever_was_read_ahead() {
    for workers in [0, 1, 3] {
        let mut loaders = plain(60, &[workers, 0]);
        next(&mut loaders).unwrap();
        // Until as much is read ahead as is allowed.
        while workers > 0 && loaders[0].stats().ready < 4 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // The last of several changes counts.
        divide(&mut loaders, &[5, 1]);
        divide(&mut loaders, &[1, 2]);
        let parts = next(&mut loaders).unwrap();
        assert_eq!(parts, [vec![6, 7], vec![8, 9, 10, 11]]);
        let length = text(&loaders[0]).len();
        assert!(length <= 200, "{length}");
        divide(&mut loaders, &[1, 1]);
        assert_eq!(sizes(&next(&mut loaders).unwrap()), [3, 3]);
        let mut rest = 0;
        while next(&mut loaders).is_some() {
            rest += 1;
        }
        assert_eq!(rest, 20 - 3);
    }
}

#[test]
fn bad_divisions_change_nothing() {
    let mut loaders = plain(30, &[0, 0]);
    next(&mut loaders).unwrap();
    let division = Division::weighted([1, 2, 3]).unwrap();
    let error = loaders[0].divide(&division).unwrap_err();
    assert_eq!(
        error.to_string(),
        "loader `data` has 2 ranks, a division is among 3"
    );
    assert_eq!(sizes(&next(&mut loaders).unwrap()), [3, 3]);

    // A position whose weights are nonsense is refused as a whole.
    divide(&mut loaders, &[1, 2]);
    let saved = text(&loaders[0]);
    let damaged = saved.replace("[1,2]", "[0,0]");
    assert_ne!(saved, damaged);
    assert!(serde_json::from_str::<Position>(&damaged).is_err());

    // As the version before wrote it.
    let old = saved.replace("\"version\":3", "\"version\":2");
    let old = old.replace("\"division\":[1,2]", "\"divisions\":[[[0,1,0],[1,2]]]");
    let old: Position = serde_json::from_str(&old).unwrap();
    let error = loaders[0].load_state(&old).unwrap_err().to_string();
    assert!(error.contains("version: saved 2, here 3"), "{error}");
    assert_eq!(sizes(&next(&mut loaders).unwrap()), [2, 4]);
}

#[test]
fn streams_are_divided_too() {
    let build = |rank, ranks| {
        let open = |_| -> Result<Numbers, BoxedError> { Ok(Box::new((0..20).map(Ok))) };
        let builder = Loader::builder(Stream(open), collate).batch(6).epochs(3);
        let builder = builder.shuffle(3).buffer(7).rank(rank, ranks);
        builder.workers(rank).build().unwrap()
    };
    let expected = all(&mut build(0, 1));
    let mut loaders = vec![build(0, 2), build(1, 2)];
    let (mut batches, mut positions) = (Vec::new(), Vec::new());
    let mut read = |loaders: &mut [Loader<Tensor>], most: usize| {
        for _ in 0..most {
            let Some(parts) = next(loaders) else { break };
            batches.push(parts);
            positions.push(text(&loaders[0]));
            assert_eq!(positions.last(), Some(&text(&loaders[1])));
        }
    };
    read(&mut loaders, 2);
    divide(&mut loaders, &[1, 2]);
    read(&mut loaders, 5);
    divide(&mut loaders, &[2, 1]);
    read(&mut loaders, 99);
    let whole: Vec<_> = batches.iter().map(|parts| parts.concat()).collect();
    assert_eq!(whole, expected);
    for (at, first) in [(1, 3), (2, 2), (6, 2), (8, 4), (10, 4)] {
        assert_eq!(batches[at][0].len(), first, "{batches:?}");
    }
    for at in [2, 5, 7, 8, 9] {
        let mut again = vec![build(0, 2), build(1, 2)];
        resume(&mut again, &positions[at]);
        let end = if at < 6 { 7 } else { batches.len() };
        for parts in &batches[at + 1..end] {
            assert_eq!(next(&mut again).unwrap(), *parts);
        }
        let mut others = vec![build(0, 3), build(1, 3), build(2, 3)];
        resume(&mut others, &positions[at]);
        let rest: Vec<_> = std::iter::from_fn(|| next(&mut others))
            .map(|parts| parts.concat())
            .collect();
        assert_eq!(rest, expected[at + 1..]);
    }
}

/// The error was read ahead and dropped, so it comes again, and the epoch is not left out without a word.
#[test]
fn an_epoch_that_cannot_be_begun_is_an_error_also_after_a_division() {
    static TRIES: AtomicUsize = AtomicUsize::new(0);
    let open = |epoch| -> Result<Numbers, BoxedError> {
        match epoch {
            1 => {
                TRIES.fetch_add(1, Ordering::Relaxed);
                Err("the network is down".into())
            }
            _ => Ok(Box::new((0..6).map(Ok))),
        }
    };
    let builder = Loader::builder(Stream(open), collate).batch(3).epochs(3);
    let mut loader = builder.rank(0, 2).build().unwrap();
    loader.next().unwrap().unwrap();
    while TRIES.load(Ordering::Relaxed) == 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    loader.divide(&Division::weighted([2, 1]).unwrap()).unwrap();
    let outcomes: Vec<_> = loader
        .map(|batch| batch.map(|batch| batch.indices.len()).ok())
        .collect();
    assert_eq!(outcomes, [Some(2), None, Some(2), Some(2)]);
}

/// Documents that are packed: batches of so many tokens, of which each rank packs its own.
#[test]
fn packed_documents_come_once() {
    let documents: Vec<Vec<u32>> = (0..40).map(|n| vec![n; 1 + n as usize * 5 % 11]).collect();
    let build = |rank| {
        let pack = Pack::new(16);
        let items = Items(documents.clone());
        let loader = Loader::builder(items, move |documents| pack.documents(documents));
        loader
            .batch_cost(9)
            .shuffle(1)
            .rank(rank, 3)
            .build()
            .unwrap()
    };
    let mut loaders = [build(0), build(1), build(2)];
    let mut seen = vec![0; 40];
    let mut first = true;
    loop {
        let batches = loaders.each_mut().map(Loader::next);
        if batches.iter().all(Option::is_none) {
            break;
        }
        for batch in batches {
            let batch = batch.expect("ranks end together").unwrap();
            let tokens = batch
                .tokens
                .flatten_all()
                .unwrap()
                .to_vec1::<u32>()
                .unwrap();
            for (piece, index) in batch.pieces().iter().zip(&batch.indices) {
                assert_eq!(documents[batch.indices[piece.document]].len(), piece.len);
                seen[*index] += 1;
            }
            let length: usize = batch.pieces().iter().map(|piece| piece.len).sum();
            let own: usize = batch
                .indices
                .iter()
                .map(|index| documents[*index].len())
                .sum();
            assert!(length == own && tokens.len() >= own);
            assert_eq!(
                batch.extent().unwrap().samples == 0,
                batch.indices.is_empty()
            );
        }
        if std::mem::take(&mut first) {
            for loader in &mut loaders {
                loader
                    .divide(&Division::weighted([1, 3, 2]).unwrap())
                    .unwrap();
            }
        }
    }
    assert_eq!(seen, vec![1; 40]);
}

/// The largest sum of weights.
const MOST: usize = usize::MAX >> 8;

proptest! {
    #[test]
    fn parts_add_up_and_are_near_their_proportion(
        weights in prop::collection::vec(0_usize..1000, 1..20),
        samples in 0_usize..5000,
    ) {
        let total: usize = weights.iter().sum();
        prop_assume!(total > 0);
        let division = Division::weighted(weights.clone()).unwrap();
        let parts = division.parts(samples);
        prop_assert_eq!(parts.len(), weights.len());
        let mut end = 0;
        for (rank, (part, weight)) in parts.iter().zip(&weights).enumerate() {
            prop_assert_eq!(part.start, end);
            prop_assert!(part.end >= part.start);
            prop_assert_eq!(division.part(rank, samples), part.clone());
            prop_assert!(samples < weights.len() || !part.is_empty());
            // Each cut is off by less than 1, and those that leave samples to later ranks by less than their number.
            let exact = samples as f64 * *weight as f64 / total as f64;
            prop_assert!((part.len() as f64 - exact).abs() < weights.len() as f64 + 1.);
            end = part.end;
        }
        prop_assert_eq!(end, samples);
        prop_assert!(division.part(weights.len(), samples).is_empty());
        if weights.iter().all(|weight| *weight > 0) && !division.is_equal() {
            let exact = division.parts(total);
            prop_assert!(exact.iter().map(ExactSizeIterator::len).eq(weights.iter().copied()));
        }
        let text = serde_json::to_string(&division).unwrap();
        prop_assert_eq!(serde_json::from_str::<Division>(&text).unwrap(), division);
    }
}

#[test]
fn extremes_neither_overflow_nor_pass() {
    let division = Division::weighted([MOST - 1, 1]).unwrap();
    assert_eq!(division.parts(MOST), [0..MOST - 1, MOST - 1..MOST]);
    assert_eq!(division.parts(2), [0..1, 1..2]);
    let equal = Division::equal(usize::MAX);
    assert_eq!(equal.part(usize::MAX - 1, 1), 0..1);
    assert_eq!(equal.part(usize::MAX, 5), 5..5);
    for weights in [vec![], vec![0, 0], vec![MOST, 1], vec![usize::MAX, 2]] {
        let text = format!("{weights:?}");
        assert!(Division::weighted(weights).is_err());
        assert!(serde_json::from_str::<Division>(&text).is_err());
    }
    assert!(Division::weighted([3, 3, 3]).unwrap() == Division::equal(3));
}
