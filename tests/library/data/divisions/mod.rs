//! Ranks that are given unequal parts of the batches, while they read ahead.

mod holding;

use std::time::Duration;

use candle_core::Tensor;
use candle_headroom::batch::{Batch, Division, Hold, Place};
use candle_headroom::data::{Items, Loader, Pack, Position, Stream};
use candle_headroom::error::BoxedError;
use proptest::prelude::*;

use super::interruptions::{Settings, settings};
use super::{all, collate, held, numbers};

/// Loaders of all ranks, which read ahead with different numbers of threads.
fn ranks(settings: &Settings, workers: &[usize]) -> Vec<Loader<Tensor>> {
    let ranks = workers.len();
    let build = |(rank, workers): (usize, &usize)| {
        let builder = settings.builder().workers(*workers).ahead(rank + 1);
        builder.rank(rank, ranks).build().unwrap()
    };
    workers.iter().enumerate().map(build).collect()
}

/// Divides as the trainers of a group do. The places go from rank to rank as bytes.
fn divide(loaders: &[Loader<Tensor>], weights: &[usize]) -> Place {
    let division = Division::weighted(weights).unwrap();
    let holds: Vec<_> = loaders
        .iter()
        .map(|loader| Hold::new(loader.divide()))
        .collect();
    let places = holds
        .iter()
        .map(|hold| Place::from_bytes(hold.next().to_bytes()));
    let from = places.max().unwrap();
    for hold in holds {
        hold.divide(from, &division).unwrap();
    }
    from
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

fn revised(loader: &Loader<Tensor>, text: &str) -> String {
    let mut position: Position = serde_json::from_str(text).unwrap();
    loader.divide().revise(&mut position);
    serde_json::to_string(&position).unwrap()
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
        // Of each batch: the parts, the position after it, and how many batches no later change can have touched.
        let (mut batches, mut positions) = (Vec::new(), vec![text(&loaders[0])]);
        let mut untouched = Vec::new();
        let mut changes = changes.into_iter();
        let mut change = changes.next();
        let mut since = 0;
        loop {
            while let Some((_, weights)) = change.filter(|(after, _)| *after <= since) {
                divide(&loaders, &weights[..workers.len()]);
                // As a trainer does with the position that it saves.
                let saved = &mut positions[batches.len()];
                let revised = loaders.iter().map(|loader| revised(loader, saved));
                let revised: Vec<_> = revised.collect();
                prop_assert!(revised.iter().all(|other| *other == revised[0]));
                prop_assert_eq!(&self::revised(&loaders[0], &revised[0]), &revised[0]);
                saved.clone_from(&revised[0]);
                untouched.resize(batches.len(), batches.len());
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
        untouched.resize(batches.len() + 1, batches.len());
        let whole: Vec<_> = batches.iter().map(|parts| parts.concat()).collect();
        prop_assert_eq!(&whole, &expected);

        for pick in picks {
            let at = pick.index(positions.len());
            // Among as many ranks, each gets the same parts again.
            let mut again = ranks(&settings, &workers);
            resume(&mut again, &positions[at]);
            for parts in &batches[at..untouched[at]] {
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
fn a_division_begins_where_no_rank_has_begun() {
    let mut loaders = plain(30, &[0, 0]);
    assert_eq!(sizes(&next(&mut loaders).unwrap()), [3, 3]);
    // Rank 1 is a batch ahead.
    let early = loaders[1].next().unwrap().unwrap();
    divide(&loaders, &[1, 2]);
    assert_eq!(held(&loaders[0].next().unwrap().unwrap()), [6, 7, 8]);
    assert_eq!(held(&early), [9, 10, 11]);
    assert_eq!(
        next(&mut loaders).unwrap(),
        [vec![12, 13], vec![14, 15, 16, 17]]
    );
    // Again, and back; the last of several changes at one place counts.
    divide(&loaders, &[5, 1]);
    divide(&loaders, &[1, 5]);
    assert_eq!(sizes(&next(&mut loaders).unwrap()), [1, 5]);
    let length = text(&loaders[0]).len();
    assert!(length <= 200, "{length}");
    divide(&loaders, &[1, 1]);
    assert_eq!(sizes(&next(&mut loaders).unwrap()), [3, 3]);
    assert!(
        !text(&loaders[0]).contains("divisions"),
        "{}",
        text(&loaders[0])
    );
}

#[test]
fn what_was_read_ahead_keeps_its_division() {
    for workers in [1, 3] {
        let mut loaders = plain(60, &[workers, workers]);
        next(&mut loaders).unwrap();
        // Until as much is read ahead as is allowed.
        while loaders.iter().any(|loader| loader.stats().ready < 4) {
            std::thread::sleep(Duration::from_millis(1));
        }
        divide(&loaders, &[1, 2]);
        let mut firsts = Vec::new();
        while let Some(parts) = next(&mut loaders) {
            firsts.push(parts[0].len());
        }
        let most = 1 + 2 * workers.max(2);
        let before = firsts.iter().take_while(|first| **first == 3).count();
        assert!((4..=most).contains(&before), "{firsts:?}");
        assert!(
            firsts[before..].iter().all(|first| *first == 2),
            "{firsts:?}"
        );
    }
}

#[test]
fn streams_are_divided_too() {
    type Numbers = Box<dyn Iterator<Item = Result<u32, BoxedError>> + Send>;
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
    // The first batch that no rank has begun is of this epoch, or of the next.
    let from = divide(&loaders, &[1, 2]);
    read(&mut loaders, 5);
    assert!(from > Place::default());
    divide(&loaders, &[2, 1]);
    read(&mut loaders, 99);
    let whole: Vec<_> = batches.iter().map(|parts| parts.concat()).collect();
    assert_eq!(whole, expected);
    let has_size = |batch: &[Vec<usize>], first: usize| batch[0].len() == first;
    assert!(
        has_size(&batches[0], 3)
            && has_size(&batches[6], 2)
            && batches[9..11].iter().any(|batch| has_size(batch, 4))
    );
    for at in [6, 7, 8, 9, 10] {
        let mut again = vec![build(0, 2), build(1, 2)];
        resume(&mut again, &positions[at]);
        // The second change came after the seventh batch.
        let end = if at < 7 { 7 } else { batches.len() };
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
            let holds = loaders.each_ref().map(|loader| Hold::new(loader.divide()));
            let from = holds.each_ref().map(Hold::next).into_iter().max().unwrap();
            for hold in holds {
                hold.divide(from, &Division::weighted([1, 3, 2]).unwrap())
                    .unwrap();
            }
        }
    }
    assert_eq!(seen, vec![1; 40]);
}
