//! Each sample comes once in an epoch, whatever is interrupted and whoever reads.

use candle_core::Tensor;
use candle_headroom::data::{Dataset, Loader, LoaderBuilder, Position, Stream};
use candle_headroom::error::BoxedError;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{Numbers, all, collate, cost, held, numbers};

const EPOCHS: usize = 2;

/// Numbers with parts and blocks, of which some cannot be read.
pub(super) struct Varied {
    len: usize,
    parts: Vec<usize>,
    blocks: Vec<usize>,
    fails: Option<usize>,
}

impl Dataset for Varied {
    type Sample = u32;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<u32, BoxedError> {
        read(index, self.fails)
    }

    fn cost(&self, index: usize) -> Result<usize, BoxedError> {
        Ok(cost(index))
    }

    fn name(&self) -> String {
        "varied".to_owned()
    }

    fn parts(&self) -> Vec<usize> {
        self.parts.clone()
    }

    fn blocks(&self) -> Vec<usize> {
        self.blocks.clone()
    }
}

/// Each sample of some number cannot be read.
fn fails(index: usize, every: Option<usize>) -> bool {
    every.is_some_and(|every| index % every == every - 1)
}

fn read(index: usize, every: Option<usize>) -> Result<u32, BoxedError> {
    match fails(index, every) {
        true => Err("damaged".into()),
        false => Ok(u32::try_from(index)?),
    }
}

#[derive(Debug, Clone, Copy)]
enum Size {
    Samples(usize),
    Cost(usize),
    PaddedCost(usize),
}

#[derive(Debug, Clone)]
pub(super) struct Settings {
    parts: Vec<usize>,
    /// Weights of the parts, and the samples of an epoch.
    mixture: Option<([u8; 3], usize)>,
    seed: Option<u64>,
    /// The lengths of blocks, again and again, and how many are shuffled together.
    blocks: Option<([usize; 3], usize)>,
    size: Size,
    sorted: Option<usize>,
}

impl Settings {
    fn len(&self) -> usize {
        self.parts.iter().sum()
    }

    pub(super) fn builder(&self) -> LoaderBuilder<Varied, Tensor> {
        self.failing(None)
    }

    fn failing(&self, fails: Option<usize>) -> LoaderBuilder<Varied, Tensor> {
        let len = self.len();
        let (lengths, window) = self.blocks.unwrap_or(([1; 3], 1));
        let mut end = 0;
        let ends = lengths.iter().cycle().map_while(|length| {
            let is_there = end < len;
            end = len.min(end + length);
            is_there.then_some(end)
        });
        let data = Varied {
            len,
            parts: self.parts.clone(),
            blocks: ends.collect(),
            fails,
        };
        let builder = Loader::builder(data, collate).epochs(EPOCHS as u64);
        let builder = match self.size {
            Size::Samples(samples) => builder.batch(samples),
            Size::Cost(most) => builder.batch_cost(most),
            Size::PaddedCost(most) => builder.batch_padded_cost(most),
        };
        let builder = match self.sorted {
            Some(window) => builder.sort_by_cost(window),
            None => builder,
        };
        let builder = match &self.mixture {
            Some((weights, samples)) => {
                let weights: Vec<_> = weights.map(f64::from)[..self.parts.len()].into();
                builder.mixture(weights).samples(*samples)
            }
            None => builder,
        };
        let builder = match self.seed {
            Some(seed) => builder.shuffle(seed),
            None => builder,
        };
        match self.blocks.is_some() && (self.seed.is_some() || self.mixture.is_some()) {
            true => builder.blocks(window),
            false => builder,
        }
    }

    /// Compares how often the samples of all epochs came with what is promised.
    fn check(&self, samples: &[usize], fails: impl Fn(usize) -> bool) -> Result<(), TestCaseError> {
        let mut times = vec![0; self.len()];
        samples.iter().for_each(|index| times[*index] += 1);
        let mut parts = &times[..];
        for (number, len) in self.parts.iter().enumerate() {
            let (part, rest) = parts.split_at(*len);
            let first = self.len() - parts.len();
            parts = rest;
            let (failed, read): (Vec<_>, Vec<_>) =
                (first..).zip(part).partition(|(index, _)| fails(*index));
            prop_assert!(failed.iter().all(|(_, times)| **times == 0), "{failed:?}");
            let (least, most) = match &self.mixture {
                None => (EPOCHS, EPOCHS),
                Some((weights, samples)) => {
                    let weights = &weights[..self.parts.len()];
                    let sum: u8 = weights.iter().sum();
                    let share = *samples as f64 * f64::from(weights[number]) / f64::from(sum);
                    let draws = [share.floor(), share.ceil()].map(|draws| draws as usize * EPOCHS);
                    (draws[0] / len, draws[1].div_ceil(*len))
                }
            };
            let is_right = |times: usize| (least..=most).contains(&times);
            prop_assert!(read.iter().all(|(_, times)| is_right(**times)), "{read:?}");
            let times = || read.iter().map(|(_, times)| **times);
            let differs = times().max().unwrap_or(0) - times().min().unwrap_or(0);
            prop_assert!(differs <= 1, "{read:?}");
        }
        Ok(())
    }
}

pub(super) fn settings() -> impl Strategy<Value = Settings> {
    let size = prop_oneof![
        (1_usize..9).prop_map(Size::Samples),
        (1_usize..60).prop_map(Size::Cost),
        (1_usize..60).prop_map(Size::PaddedCost),
    ];
    let mixture = ([1_u8..4, 1..4, 1..4], 20_usize..150);
    (
        prop::collection::vec(1_usize..60, 1..4),
        prop::option::weighted(0.3, mixture),
        prop::option::of(any::<u64>()),
        prop::option::of(([1_usize..30, 1..30, 1..30], 1_usize..9)),
        size,
        prop::option::of(1_usize..40),
    )
        .prop_map(|(parts, mixture, seed, blocks, size, sorted)| Settings {
            parts,
            mixture,
            seed,
            blocks,
            size,
            sorted,
        })
}

/// What is read: a dataset, or a stream of as many samples with a buffer.
#[derive(Debug, Clone)]
struct Source {
    settings: Settings,
    buffer: Option<usize>,
    fails: Option<usize>,
}

impl Source {
    fn open(&self, workers: usize, (rank, ranks): (usize, usize)) -> Loader<Tensor> {
        let Some(buffer) = self.buffer else {
            let builder = self.settings.failing(self.fails).skip_failures(usize::MAX);
            let builder = builder.workers(workers).rank(rank, ranks);
            return builder.build().unwrap();
        };
        let (len, fails) = (self.settings.len(), self.fails);
        let open = move |_| Ok::<_, BoxedError>((0..len).map(move |index| read(index, fails)));
        let builder = Loader::builder(Stream(open), collate).epochs(EPOCHS as u64);
        let builder = match self.settings.seed {
            Some(seed) => builder.shuffle(seed).buffer(buffer),
            None => builder,
        };
        let builder = builder.batch(buffer).skip_failures(usize::MAX);
        let builder = builder.workers(workers).rank(rank, ranks);
        builder.build().unwrap()
    }
}

fn sources() -> impl Strategy<Value = Source> {
    let buffer = prop::option::weighted(0.25, 1_usize..20);
    (settings(), buffer, prop::option::weighted(0.3, 2_usize..9)).prop_map(
        |(mut settings, buffer, fails)| {
            if buffer.is_some() {
                settings.mixture = None;
            }
            Source {
                settings,
                buffer,
                fails,
            }
        },
    )
}

/// Workers, ranks, the batches that a run has consumed when it is saved, and those that it reads until it is killed.
fn runs() -> impl Strategy<Value = Vec<(usize, usize, usize, usize)>> {
    prop::collection::vec((0_usize..4, 1_usize..5, 0_usize..30, 0_usize..4), 1..5)
}

/// The next batches of all ranks together; at most `most`.
fn together(loaders: &mut [Loader<Tensor>], most: usize) -> Vec<Vec<usize>> {
    let mut batches = Vec::new();
    while batches.len() < most {
        let shares: Vec<_> = loaders.iter_mut().map(|loader| loader.next()).collect();
        if shares.iter().all(Option::is_none) {
            break;
        }
        let shares = shares.into_iter().map(|share| {
            let share = share.expect("ranks end together").unwrap();
            match share.is_empty() {
                true => Vec::new(),
                false => held(&share),
            }
        });
        batches.push(shares.flatten().collect());
    }
    batches
}

fn check(source: &Source, runs: &[(usize, usize, usize, usize)]) -> Result<(), TestCaseError> {
    let uninterrupted = all(&mut source.open(0, (0, 1)));
    let mut position: Option<Position> = None;
    let mut batches = Vec::new();
    for &(workers, ranks, most, lost) in runs.iter().chain([&(1, 1, usize::MAX, 0)]) {
        let open = |rank| {
            let mut loader = source.open(workers, (rank, ranks));
            if let Some(position) = &position {
                loader.load_state(position).unwrap();
            }
            loader
        };
        let mut loaders: Vec<_> = (0..ranks).map(open).collect();
        // A batch of which all samples failed comes to several ranks alone.
        let consumed = together(&mut loaders, most).into_iter();
        batches.extend(consumed.filter(|batch| !batch.is_empty()));
        // As a file keeps it.
        let text = serde_json::to_string(loaders[0].state()).unwrap();
        // Parts and blocks have a place in it.
        let settings = &source.settings;
        let has_more = settings.mixture.is_some() || settings.blocks.is_some();
        let longest = [200, 240][usize::from(has_more)];
        prop_assert!(text.len() <= longest, "{} bytes: {text}", text.len());
        let read: Position = serde_json::from_str(&text).unwrap();
        prop_assert!(loaders.iter().all(|loader| *loader.state() == read));
        position = Some(read);
        // Batches that no update consumed before the run was killed.
        together(&mut loaders, lost);
    }
    prop_assert_eq!(&batches, &uninterrupted);

    let Source {
        settings,
        buffer,
        fails: every,
    } = source;
    settings.check(&batches.concat(), |index| fails(index, *every))?;
    for batch in &batches {
        let costs = batch.iter().map(|index| cost(*index));
        let fits = match settings.size {
            _ if buffer.is_some() => batch.len() <= buffer.unwrap_or(0),
            Size::Samples(samples) => batch.len() <= samples,
            Size::Cost(most) => costs.sum::<usize>() <= most,
            Size::PaddedCost(most) => costs.max().unwrap_or(0) * batch.len() <= most,
        };
        prop_assert!(fits || batch.len() == 1, "{batch:?}");
    }
    if settings.mixture.is_none() && every.is_none() {
        for epoch in batches.concat().chunks(settings.len()) {
            let mut epoch = epoch.to_vec();
            epoch.sort_unstable();
            prop_assert!(epoch.into_iter().eq(0..settings.len()));
        }
    }
    Ok(())
}

/// Runs that are saved and killed, and go on with other workers and ranks: datasets, mixtures and streams, shuffled in every way, with samples
/// that cannot be read. `HEADROOM_HISTORIES=10000` tries more of them.
#[test]
fn each_sample_comes_as_often_as_promised_in_every_history() {
    let histories = std::env::var("HEADROOM_HISTORIES");
    let cases = histories.map_or(300, |histories| histories.parse().expect("a number"));
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    });
    let checked = runner.run(&(sources(), runs()), |(source, runs)| check(&source, &runs));
    let wrong = u8::from(checked.is_err());
    println!("figure: data/epoch_samples_wrong = {wrong} histories of {cases}");
    checked.unwrap();
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
