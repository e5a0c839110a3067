//! Each sample comes once in an epoch, whatever is interrupted and whoever reads.

use candle_core::Tensor;
use candle_headroom::data::{Loader, LoaderBuilder, Position};
use proptest::prelude::*;

use super::{Numbers, all, cost, held, numbers};

#[derive(Debug, Clone, Copy)]
enum Size {
    Samples(usize),
    Cost(usize),
    PaddedCost(usize),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) len: usize,
    seed: Option<u64>,
    size: Size,
    sorted: Option<usize>,
}

impl Settings {
    pub(super) fn builder(&self) -> LoaderBuilder<Numbers, Tensor> {
        let builder = numbers(self.len).epochs(2);
        let builder = match self.size {
            Size::Samples(samples) => builder.batch(samples),
            Size::Cost(most) => builder.batch_cost(most),
            Size::PaddedCost(most) => builder.batch_padded_cost(most),
        };
        let builder = match self.sorted {
            Some(window) => builder.sort_by_cost(window),
            None => builder,
        };
        match self.seed {
            Some(seed) => builder.shuffle(seed),
            None => builder,
        }
    }
}

pub(super) fn settings() -> impl Strategy<Value = Settings> {
    let size = prop_oneof![
        (1_usize..9).prop_map(Size::Samples),
        (1_usize..60).prop_map(Size::Cost),
        (1_usize..60).prop_map(Size::PaddedCost),
    ];
    let (seed, sorted) = (
        prop::option::of(any::<u64>()),
        prop::option::of(1_usize..40),
    );
    (1_usize..150, seed, size, sorted).prop_map(|(len, seed, size, sorted)| Settings {
        len,
        seed,
        size,
        sorted,
    })
}

/// Workers, ranks, and the batches after which the run is interrupted.
fn runs() -> impl Strategy<Value = Vec<(usize, usize, usize)>> {
    prop::collection::vec((0_usize..4, 1_usize..5, 0_usize..30), 1..5)
}

/// The next batches of all ranks together; at most `most`.
fn together(loaders: &mut [Loader<Tensor>], most: usize) -> Vec<Vec<usize>> {
    let mut batches = Vec::new();
    while batches.len() < most {
        let shares: Vec<_> = loaders.iter_mut().map(|loader| loader.next()).collect();
        if shares.iter().all(Option::is_none) {
            break;
        }
        let shares = shares
            .into_iter()
            .map(|share| held(&share.expect("ranks end together").unwrap()));
        batches.push(shares.flatten().collect());
    }
    batches
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn each_sample_comes_once_in_an_epoch(settings in settings(), runs in runs()) {
        let uninterrupted = all(&mut settings.builder().workers(0).build().unwrap());

        let mut position: Option<Position> = None;
        let mut batches = Vec::new();
        for (workers, ranks, most) in runs.into_iter().chain([(1, 1, usize::MAX)]) {
            let mut loaders: Vec<_> = (0..ranks)
                .map(|rank| {
                    let builder = settings.builder().workers(workers).rank(rank, ranks);
                    let mut loader = builder.build().unwrap();
                    if let Some(position) = &position {
                        loader.load_state(position).unwrap();
                    }
                    loader
                })
                .collect();
            batches.extend(together(&mut loaders, most));
            // As a file keeps it.
            let text = serde_json::to_string(loaders[0].state()).unwrap();
            prop_assert!(text.len() <= 200, "{} bytes: {text}", text.len());
            let read: Position = serde_json::from_str(&text).unwrap();
            prop_assert!(loaders.iter().all(|loader| *loader.state() == read));
            position = Some(read);
        }
        prop_assert_eq!(&batches, &uninterrupted);

        // Each epoch has each sample once.
        let samples = batches.concat();
        prop_assert_eq!(samples.len(), 2 * settings.len);
        for epoch in samples.chunks(settings.len) {
            let mut epoch = epoch.to_vec();
            epoch.sort_unstable();
            prop_assert!(epoch.into_iter().eq(0..settings.len));
        }
        for batch in &batches {
            let costs = batch.iter().map(|index| cost(*index));
            let fits = match settings.size {
                Size::Samples(samples) => batch.len() <= samples,
                Size::Cost(most) => costs.sum::<usize>() <= most,
                Size::PaddedCost(most) => costs.max().unwrap_or(0) * batch.len() <= most,
            };
            prop_assert!(fits || batch.len() == 1, "{batch:?}");
        }
    }
}

#[test]
fn seeds_and_epochs_give_other_orders() {
    let order = |seed| {
        all(&mut numbers(500)
            .shuffle(seed)
            .epochs(2)
            .batch(500)
            .build()
            .unwrap())
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
    assert_ne!(order(1)[0], order(1)[1]);
}

#[test]
fn sorting_by_cost_pads_less() {
    let padding = |builder: LoaderBuilder<Numbers, Tensor>| -> usize {
        let batches = all(&mut builder.build().unwrap());
        let padding = batches.iter().map(|batch| {
            let costs: Vec<_> = batch.iter().map(|index| cost(*index)).collect();
            costs.len() * costs.iter().max().unwrap() - costs.iter().sum::<usize>()
        });
        padding.sum()
    };
    let builder = || numbers(1000).shuffle(3).batch(10);
    let (plain, sorted) = (padding(builder()), padding(builder().sort_by_cost(200)));
    assert!(sorted * 5 < plain, "{sorted} {plain}");
    // Short batches do not all come first.
    let batches = all(&mut builder().sort_by_cost(200).build().unwrap());
    let means = batches
        .iter()
        .map(|batch| batch.iter().map(|index| cost(*index)).sum::<usize>());
    assert!(!means.collect::<Vec<_>>()[..20].is_sorted());
}

#[test]
fn the_last_batch_can_be_left_out() {
    let batches = all(&mut numbers(10).batch(4).drop_last().epochs(2).build().unwrap());
    assert_eq!(
        batches.iter().map(Vec::len).collect::<Vec<_>>(),
        [4, 4, 4, 4]
    );
    let error = numbers(3).batch(4).drop_last().build().unwrap_err();
    assert_eq!(
        error.to_string(),
        "numbers has 3 samples, too few for one batch, and `drop_last` leaves them out"
    );
}
