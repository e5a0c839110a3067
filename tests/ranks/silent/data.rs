//! Ranks whose loaders differ: no rank updates, and the error names the rank and what it has.

use std::collections::BTreeMap;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use candle_headroom::batch::{Division, Fixed};
use candle_headroom::data::{Dataset, Items, Loaded, Loader, LoaderBuilder, Stream};
use candle_headroom::distributed::Group;
use candle_headroom::error::BoxedError;
use candle_headroom::{AdaptiveTrainer, Error, Sgd};

use super::case;
use crate::launch::{is_rank, together};
use crate::model::Model;

const SAMPLES: u32 = 24;
const BATCH: usize = 6;
/// The rank that differs.
const ODD: usize = 1;

struct Numbers {
    len: u32,
    name: &'static str,
    /// Cannot be read.
    torn: Vec<u32>,
}

impl Dataset for Numbers {
    type Sample = u32;

    fn len(&self) -> usize {
        self.len as usize
    }

    fn get(&self, index: usize) -> Result<u32, BoxedError> {
        let number = u32::try_from(index)?;
        match self.torn.contains(&number) {
            true => Err(format!("{number} is torn").into()),
            false => Ok(number),
        }
    }

    fn name(&self) -> String {
        format!("/data/{}", self.name)
    }
}

fn collate(samples: Vec<u32>) -> Result<Tensor, BoxedError> {
    let rows = samples.len();
    let values = Tensor::new(samples, &Device::Cpu)?.to_dtype(DType::F64)?;
    Ok(values.reshape((rows, 1))?)
}

fn numbers(len: u32, name: &'static str, torn: Vec<u32>) -> LoaderBuilder<Numbers, Tensor> {
    let builder = Loader::builder(Numbers { len, name, torn }, collate);
    builder.name("train").batch(BATCH).shuffle(7)
}

/// As on all ranks that do not differ.
fn usual() -> LoaderBuilder<Numbers, Tensor> {
    numbers(SAMPLES, "train.bin", Vec::new())
}

fn trainer(group: &Group, model: &Model) -> AdaptiveTrainer<Sgd> {
    let sgd = Sgd::builder(&model.varmap).learning_rate(0.1);
    let trainer = AdaptiveTrainer::builder(sgd.build().expect("an optimizer")).group(group);
    trainer
        .policy(Fixed::new(2).expect("a size"))
        .build()
        .expect("a trainer")
}

fn model() -> Model {
    Model::new(&[1, 2], DType::F64, 1)
}

/// Asserts that the error names the rank and the thing. Returns whether there was none.
fn is_silent<T>(done: Result<T, Error>, expected: &[&str]) -> bool {
    let error = match done {
        Ok(_) => return true,
        Err(Error::WindowLost(lost)) => lost.reason,
        Err(error) => error,
    };
    assert!(error.is_group(), "not a group's error: {error}");
    let text = error.to_string();
    assert!(text.starts_with("the ranks differ in "), "{text}");
    for expected in expected {
        assert!(text.contains(expected), "`{expected}` is not in `{text}`");
    }
    false
}

/// A step with the first batch of this loader that can be read, and one whose window has another batch of it. Returns whether a rank updated.
fn steps(group: &Group, mut loader: Loader<Tensor>, expected: &[&str]) -> bool {
    let model = model();
    let mut trainer = trainer(group, &model);
    let before = model.values();
    let mut next = || loader.find_map(Result::ok).expect("a batch");
    let loss = |x: Tensor| model.forward(&x)?.mean_all();
    let first = trainer.step(&next(), |x, _| loss(x));
    let mut is_wrong = is_silent(first, expected);
    trainer
        .accumulate(&next(), |x, _| loss(x))
        .expect("a batch");
    is_wrong |= is_silent(trainer.step(&next(), |x, _| loss(x)), expected);
    if !is_wrong {
        assert_eq!((model.values(), trainer.updates()), (before.clone(), 0));
        assert_eq!(trainer.samples(), 0);
        // The group goes on.
        let x = Tensor::ones((2, 1), DType::F64, &Device::Cpu).expect("a batch");
        trainer
            .step(&x, |x, _| loss(x))
            .expect("without loaders nothing differs");
        assert_ne!(model.values(), before);
    }
    is_wrong
}

/// A case in which rank 1's loader is another one.
fn differing(name: &str, odd: impl Fn() -> LoaderBuilder<Numbers, Tensor>, expected: &[&str]) {
    case(name, |group| {
        let builder = if group.rank() == ODD { odd() } else { usual() };
        let loader = builder.group(group).build();
        steps(group, loader.expect("a loader"), expected)
    });
}

#[test]
fn another_seed() {
    let expected = ["rank 1 reads `train` with order shuffled by 8, rank 0 with shuffled by 7"];
    differing("seed", || usual().shuffle(8), &expected);
}

#[test]
fn another_length() {
    let expected = ["rank 1 reads `train` with samples in the dataset 23, rank 0 with 24"];
    differing("length", || numbers(23, "train.bin", Vec::new()), &expected);
}

#[test]
fn another_batch() {
    let expected = ["rank 1 reads `train` with batches 8 samples in 8, rank 0 with 6 samples in 6"];
    differing("batch", || usual().batch(8), &expected);
}

#[test]
fn another_dataset() {
    let expected = ["rank 1 reads `train` with dataset `test.bin`, rank 0 with `train.bin`"];
    let odd = || numbers(SAMPLES, "test.bin", Vec::new());
    differing("dataset", odd, &expected);
}

#[test]
fn another_loader() {
    let expected = [
        "rank 1 has batches of loaders [\"other\"",
        "rank 0 of [\"train\"",
    ];
    differing("loader", || usual().name("other"), &expected);
}

/// Rank 1 divides its batches in another way.
#[test]
fn other_parts() {
    let expected = ["rank 1 cuts batch 0 of window ", "rank 0 into equal parts"];
    case("parts", |group| {
        let loader = usual().group(group).build();
        let mut loader = loader.expect("a loader");
        if group.rank() == ODD {
            let weights = Vec::from_iter(1..=group.size());
            let division = Division::weighted(weights).expect("a division");
            loader.divide(&division).expect("a division");
        }
        steps(group, loader, &expected)
    });
}

/// Rank 1 has taken a batch more than the others when the parts change.
#[test]
fn a_batch_ahead_when_parts_change() {
    case("a batch ahead", |group| {
        let loader = usual().group(group).endless().build();
        let mut loader = loader.expect("a loader");
        let model = model();
        let sgd = Sgd::builder(&model.varmap).learning_rate(0.1);
        let sgd = sgd.build().expect("an optimizer");
        let trainer = AdaptiveTrainer::builder(sgd).group(group);
        let trainer = trainer.policy(Fixed::new(6).expect("a size"));
        let mut trainer = trainer.measured_shares(1).build().expect("a trainer");
        // So long that other work on the machine cannot hide it.
        let pause = Duration::from_millis(if group.rank() == ODD { 200 } else { 10 });
        let mut step = |batch: &Loaded<Tensor>| {
            trainer.step(batch, |x, _| {
                std::thread::sleep(pause);
                model.forward(&x)?.mean_all()
            })
        };
        let mut next = || loader.next().expect("endless").expect("a batch");
        let mut batch = next();
        let is_ahead = group.rank() == ODD;
        let early = is_ahead.then(&mut next);
        step(&batch).expect("equal parts");
        batch = early.unwrap_or_else(&mut next);
        let is_wrong = is_silent(
            step(&batch),
            &["into equal parts", "rank 1 cuts batch 0 of window 1"],
        );
        // From then on all have the same parts.
        step(&next()).expect("the same parts");
        is_wrong
    });
}

/// Rank 1 cannot read a sample of its own part of the first batch, and goes on with the second one.
#[test]
fn a_skipped_batch() {
    let expected = [
        "rank 1 is at batch 0 of window ",
        " of epoch 0 of `train`, with 6 samples, rank 0 at batch 0 of window ",
        "`skip_failures`",
    ];
    case("skipped batch", |group| {
        let (rank, ranks) = (group.rank(), group.size());
        let mut plain = usual().rank(ODD, ranks).build().expect("a loader");
        let torn = plain.next().expect("a batch").expect("a batch").indices[0];
        let torn = if rank == ODD {
            vec![torn as u32]
        } else {
            Vec::new()
        };
        let loader = numbers(SAMPLES, "train.bin", torn).rank(rank, ranks);
        steps(group, loader.build().expect("a loader"), &expected)
    });
}

#[test]
fn no_rank() {
    let expected = [
        "reads `train` as rank 0 of 1",
        "rank 1 of ",
        "`.group(&group)`",
    ];
    case("no rank", |group| {
        steps(group, usual().build().expect("a loader"), &expected)
    });
}

#[test]
fn no_rank_on_one_rank() {
    let expected = [
        "reads `train` as rank 0 of 1",
        "differ in their data, so nothing was updated: rank 1 of ",
    ];
    case("no rank on one rank", |group| {
        let builder = match group.rank() {
            ODD => usual(),
            rank => usual().rank(rank, group.size()),
        };
        steps(group, builder.build().expect("a loader"), &expected)
    });
}

#[test]
fn another_number_of_ranks() {
    case("number of ranks", |group| {
        let (rank, size) = (group.rank(), group.size());
        let loader = usual().rank(rank, size + 1).build().expect("a loader");
        let expected = format!("rank 1 of {size} reads `train` as rank 1 of {}", size + 1);
        steps(group, loader, &[&expected])
    });
}

#[test]
fn the_same_rank_twice() {
    case("same rank twice", |group| {
        let (rank, size) = (group.rank(), group.size());
        let rank = if rank == ODD { 0 } else { rank };
        let loader = usual().rank(rank, size).build().expect("a loader");
        let expected = format!("rank 1 of {size} reads `train` as rank 0 of {size}");
        steps(group, loader, &[&expected])
    });
}

#[test]
fn a_loader_on_some_ranks() {
    case("loader on some ranks", |group| {
        let model = model();
        let mut trainer = trainer(group, &model);
        let loss = |x: Tensor, _: &_| model.forward(&x)?.mean_all();
        let done = match group.rank() {
            ODD => {
                let x = Tensor::ones((2, 1), DType::F64, &Device::Cpu).expect("a batch");
                trainer.step(&x, loss)
            }
            rank => {
                let mut loader = usual().rank(rank, group.size()).build().expect("a loader");
                trainer.step(&loader.next().expect("a batch").expect("a batch"), loss)
            }
        };
        let is_wrong = is_silent(
            done,
            &["rank 1 has batches of loaders [], rank 0 of [\"train\"]"],
        );
        assert!(is_wrong || trainer.updates() == 0);
        is_wrong
    });
}

/// A stream has no length, but its last batch has.
#[test]
fn a_stream_that_ends_earlier() {
    case("stream's length", |group| {
        let (rank, size) = (group.rank(), group.size());
        let len = if rank == ODD { 5 } else { 6 };
        let open = move |_| -> Result<_, BoxedError> { Ok((0..len).map(Ok)) };
        let mut loader = Loader::builder(Stream(open), collate)
            .batch(BATCH)
            .rank(rank, size)
            .build()
            .expect("a loader");
        let model = model();
        let batch = loader.next().expect("a batch").expect("a batch");
        let done = trainer(group, &model).step(&batch, |x, _| model.forward(&x)?.mean_all());
        is_silent(
            done,
            &[
                "rank 1 is at batch 0 of window 0",
                "with 5 samples, rank 0",
                "with 6",
            ],
        )
    });
}

/// Trains until the loader ends. Returns whether a sample was lost that could be read, or counted twice.
fn epoch(group: &Group, mut loader: Loader<Tensor>, expected: impl Iterator<Item = u32>) -> bool {
    let model = model();
    let mut trainer = trainer(group, &model);
    let mut seen = Vec::new();
    for batch in &mut loader {
        let batch = batch.expect("a batch");
        let own = batch.to_vec2::<f64>().expect("values").concat();
        let report = trainer
            .step(&batch, |x, _| model.forward(&x)?.mean_all())
            .expect("a step");
        let counted = report.exchange.expect("ranks").samples();
        let all = group.collect(Ok(own)).expect("what each rank has");
        assert_eq!(counted, all.len());
        seen.extend(all.into_iter().map(|value| value as u32));
    }
    let updates = group.collect(Ok(vec![trainer.updates()])).expect("numbers");
    assert!(updates.iter().all(|theirs| *theirs == updates[0]));
    let mut counts = BTreeMap::new();
    seen.iter()
        .for_each(|sample| *counts.entry(*sample).or_insert(0) += 1);
    !counts.into_iter().eq(expected.map(|sample| (sample, 1)))
}

/// Items that rank 1 cannot read the first time: one that is another rank's, and one of its own, which is left out.
#[test]
fn a_stream_with_failures_on_one_rank() {
    case("stream with failures", |group| {
        let (rank, size) = (group.rank(), group.size());
        let torn = [1, 3];
        let open = move |_| -> Result<_, BoxedError> {
            Ok(
                (0..SAMPLES).map(move |number| match rank == ODD && torn.contains(&number) {
                    true => Err("torn".into()),
                    false => Ok(number),
                }),
            )
        };
        let loader = Loader::builder(Stream(open), collate)
            .batch(BATCH)
            .skip_failures(2);
        let loader = loader.rank(rank, size).build().expect("a loader");
        epoch(group, loader, (0..SAMPLES).filter(|number| *number != 3))
    });
}

/// The last batch has one sample, which no rank can read, in a dataset and in a stream.
#[test]
fn a_last_batch_that_cannot_be_read() {
    case("unreadable last batch", |group| {
        let (rank, size) = (group.rank(), group.size());
        let last = SAMPLES;
        let torn = Loader::builder(
            Numbers {
                len: SAMPLES + 1,
                name: "torn",
                torn: vec![last],
            },
            collate,
        );
        let torn = torn.batch(BATCH).skip_failures(1).rank(rank, size);
        let is_wrong = epoch(group, torn.build().expect("a loader"), 0..last);
        let open = move |_| -> Result<_, BoxedError> {
            Ok((0..=last).map(move |number| match number == last {
                true => Err("torn".into()),
                false => Ok(number),
            }))
        };
        let stream = Loader::builder(Stream(open), collate)
            .batch(BATCH)
            .skip_failures(1);
        let stream = stream.rank(rank, size).build().expect("a loader");
        epoch(group, stream, 0..last) || is_wrong
    });
}

#[test]
fn data_of_the_ranks_own_is_asked_for() {
    case("own data on one rank", |group| {
        let (rank, size) = (group.rank(), group.size());
        let builder = match rank {
            ODD => usual().own_data(),
            _ => usual().rank(rank, size),
        };
        let expected =
            ["rank 1 has batches of loaders [\"train (own data)\"], rank 0 of [\"train\""];
        steps(group, builder.build().expect("a loader"), &expected)
    });
}

#[test]
fn ranks_with_data_of_their_own_train_together() {
    together(3, |group| {
        assert!(is_rank());
        let own = Vec::from_iter(0..10 + group.rank() as u32);
        let loader = Loader::builder(Items(own), collate).batch(2 + group.rank());
        let mut loader = loader
            .shuffle(group.rank() as u64)
            .own_data()
            .endless()
            .build()
            .expect("a loader");
        let model = model();
        let mut trainer = trainer(group, &model);
        // One rank comes to the end of its data before the others, and goes on without samples.
        let most = if group.rank() == ODD { 4 } else { 7 };
        for number in 0..7 {
            let batch = (number < most).then(|| loader.next().expect("a batch"));
            let loss = |x: Tensor, _: &_| model.forward(&x)?.mean_all();
            let report = match batch {
                Some(batch) => trainer.step(&batch.expect("a batch"), loss),
                None => {
                    let empty = Tensor::zeros((0, 1), DType::F64, &Device::Cpu).expect("a tensor");
                    trainer.step(&empty, loss)
                }
            };
            let report = report.expect("a step");
            assert_eq!(report.samples > 0, number < most);
        }
        assert_eq!(trainer.updates(), 7);
    });
}

/// A batch that rank 1 could not accumulate is missing in the update, unless rank 1 tries it again.
#[test]
fn a_batch_that_failed_in_a_window() {
    case("failed accumulation", |group| {
        let model = model();
        let mut trainer = trainer(group, &model);
        let loader = usual().group(group);
        let mut loader = loader.build().expect("a loader");
        let mut next = || loader.next().expect("a batch").expect("a batch");
        let mut window = |is_repeated: bool| {
            let mut fails = group.rank() == ODD;
            let mut loss = |x: Tensor, _: &_| match std::mem::take(&mut fails) {
                true => candle_core::bail!("on purpose"),
                false => model.forward(&x)?.mean_all(),
            };
            let batch = next();
            if let Err(error) = trainer.accumulate(&batch, &mut loss) {
                assert!(error.to_string().contains("on purpose"), "{error}");
                if is_repeated {
                    trainer.accumulate(&batch, &mut loss).expect("a batch");
                }
            }
            trainer.step(&next(), loss)
        };
        let expected =
            ["rank 1 has batches of loaders [\"train\"], rank 0 of [\"train\", \"train\"]"];
        let is_wrong = is_silent(window(false), &expected);
        let exchange = window(true).expect("an update").exchange;
        assert_eq!(exchange.expect("ranks").samples(), 2 * BATCH);
        is_wrong
    });
}
