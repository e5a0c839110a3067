//! Positions, and trainers that know how far their data was consumed.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{Consumer, Event, Fixed};
use candle_headroom::data::{Concat, Loaded, Loader, Position, Stream};
use candle_headroom::error::{BoxedError, DataError, Error};
use candle_headroom::optim::StateDict;
use candle_headroom::{AccumulatingTrainer, AdaptiveTrainer, Sgd};

use super::{Numbers, all, collate, held, numbers};

fn trainer() -> AdaptiveTrainer<Sgd> {
    let var = Var::zeros(1, DType::F32, &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![var]).build().unwrap();
    let builder = AdaptiveTrainer::builder(optimizer).policy(Fixed::whole_batch());
    builder.allow_unreached(["*"]).build().unwrap()
}

fn loss(trainer: &AdaptiveTrainer<Sgd>, x: &Tensor) -> candle_core::Result<Tensor> {
    let var = candle_headroom::optim::Commit::parameters(trainer.optimizer())[0]
        .var
        .clone();
    x.to_dtype(DType::F32)?.broadcast_mul(&var)?.mean_all()
}

/// A stream learns only by reading that an epoch has ended. A run that stopped there goes on with the next epoch, also by epochs.
#[test]
fn a_stream_resumes_at_the_end_of_an_epoch() {
    let stream = || {
        let open = |_: u64| Ok::<_, BoxedError>((0..8_u32).map(Ok));
        let builder = Loader::builder(Stream(open), collate);
        builder.batch(4).epochs(2).build().unwrap()
    };
    let var = |trainer: &AdaptiveTrainer<Sgd>| {
        let parameters = candle_headroom::optim::Commit::parameters(trainer.optimizer());
        parameters[0].var.clone()
    };
    let mean = |x: &Tensor, var: &Var| x.to_dtype(DType::F32)?.broadcast_mul(var)?.mean_all();
    let (mut loader, mut first) = (stream(), trainer());
    let of_first = var(&first);
    for batch in loader.by_ref().take(2) {
        let batch = batch.unwrap();
        let report = first.step(&batch, |x, _| mean(&x, &of_first));
        assert_eq!(report.unwrap().samples, 4);
    }
    let saved = first.state().unwrap();

    for by_epochs in [true, false] {
        let (mut loader, mut second) = (stream(), trainer());
        let of_second = var(&second);
        second.load_state(&saved).unwrap();
        loader.resume(&second).unwrap();
        let mut samples = 0;
        let mut step = |batch: candle_headroom::Result<Loaded<Tensor>>| {
            let report = second.step(&batch.unwrap(), |x, _| mean(&x, &of_second));
            samples += report.unwrap().samples;
        };
        match by_epochs {
            true => loader.epochs().flatten().for_each(&mut step),
            false => loader.by_ref().for_each(&mut step),
        }
        assert_eq!(samples, 8);
    }
}

#[test]
fn a_position_of_other_batches_is_refused() {
    let mut loader = numbers(10).batch(2).shuffle(1).build().unwrap();
    loader.next().unwrap().unwrap();
    let position = loader.state().clone();
    let others = [
        numbers(11).batch(2).shuffle(1),
        numbers(10).batch(3).shuffle(1),
        numbers(10).batch(2).shuffle(2),
        numbers(10).batch(2),
        numbers(10).batch_cost(2).shuffle(1),
    ];
    for other in others {
        let mut other = other.name("text").build().unwrap();
        let before = other.state().clone();
        let error = other.load_state(&position).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("the saved position does not fit loader `text`: "),
            "{error}"
        );
        assert_eq!(*other.state(), before);
    }
    let mut other = numbers(11).batch(3).build().unwrap();
    assert_eq!(
        other.load_state(&position).unwrap_err().to_string(),
        "the saved position does not fit loader `data`: samples in the dataset: saved 10, here 11, \
         order: saved shuffled by 1, here as stored, batches: saved 2 samples in 2, here 3 samples in 3; \
         build the loader as the run did that saved it, or with `.accept_changed_data()`"
    );
}

#[test]
fn huge_datasets_take_no_memory_and_a_short_position() {
    let len = 1_000_000_000_000;
    let mut loader = numbers(len)
        .batch(8)
        .shuffle(u64::MAX)
        .epochs(9)
        .workers(0)
        .build()
        .unwrap();
    let first = loader.next();
    // The indices are too large for this dataset's samples, but not for its order.
    let error = first.unwrap().unwrap_err().to_string();
    assert!(error.starts_with("numbers: sample "), "{error}");
    let text = serde_json::to_string(loader.state()).unwrap();
    assert!(text.len() <= 200, "{text}");
}

#[test]
fn only_what_an_update_consumed_counts() {
    let mut trainer = trainer();
    let mut loader = numbers(12).batch(2).shuffle(5).build().unwrap();
    assert!(loader.resume(&trainer).unwrap().is_none());
    let step = |trainer: &mut AdaptiveTrainer<Sgd>, loader: &mut Loader<Tensor>| {
        let batch = loader.next().unwrap().unwrap();
        let position = loader.state().clone();
        let w = loss(trainer, &batch).unwrap();
        let report = trainer
            .step(&batch, |x, _| x.to_dtype(DType::F32)?.mean_all()?.mul(&w))
            .unwrap();
        (position, report)
    };
    let consumed =
        |trainer: &AdaptiveTrainer<Sgd>| -> Option<Position> { trainer.position("data").cloned() };
    let (first, report) = step(&mut trainer, &mut loader);
    assert!(report.waited.is_some());
    assert_eq!(consumed(&trainer), Some(first.clone()));

    // A batch in hand, a batch that failed, and one that was accumulated do not count.
    let batch = loader.next().unwrap().unwrap();
    assert_eq!(consumed(&trainer), Some(first.clone()));
    let failed = trainer.step(&batch, |_, _| -> candle_core::Result<Tensor> {
        candle_core::bail!("a bad batch")
    });
    failed.unwrap_err();
    assert_eq!(consumed(&trainer), Some(first.clone()));
    let w = loss(&trainer, &batch).unwrap();
    trainer
        .accumulate(&batch, |x, _| x.to_dtype(DType::F32)?.mean_all()?.mul(&w))
        .unwrap();
    assert_eq!(consumed(&trainer), Some(first.clone()));

    // As it is saved now, the run goes on with the batch that was accumulated.
    let mut state = trainer.state().unwrap();
    let mut resumed = self::trainer();
    resumed.load_state(&state).unwrap();
    let mut again = numbers(12).batch(2).shuffle(5).build().unwrap();
    assert!(again.resume(&resumed).unwrap().is_some());
    assert_eq!(held(&again.next().unwrap().unwrap()), held(&batch));
    assert_eq!(resumed.updates(), 1);

    // With the update it counts.
    trainer.update().unwrap().unwrap();
    assert_eq!(consumed(&trainer), Some(loader.state().clone()));
    state = trainer.state().unwrap();
    resumed.load_state(&state).unwrap();
    assert!(again.resume(&resumed).unwrap().is_some());
    assert_eq!(all(&mut again), all(&mut loader));
}

#[test]
fn loaders_are_told_apart_by_name() {
    let mut trainer = trainer();
    for name in ["text", "code"] {
        let mut loader = numbers(9).batch(3).name(name).build().unwrap();
        let batch = loader.next().unwrap().unwrap();
        let w = loss(&trainer, &batch).unwrap();
        trainer
            .step(&batch, |x, _| x.to_dtype(DType::F32)?.mean_all()?.mul(&w))
            .unwrap();
    }
    assert!(trainer.position("text").is_some() && trainer.position("code").is_some());
    assert!(trainer.position("data").is_none());
}

#[test]
fn an_accumulating_trainer_counts_by_update() {
    let var = Var::zeros(1, DType::F32, &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![var.clone()]).build().unwrap();
    let mut trainer = AccumulatingTrainer::builder(optimizer, 3).build().unwrap();
    let mut positions = Vec::new();
    for batch in numbers(12).batch(2).build().unwrap() {
        let batch = batch.unwrap();
        trainer
            .step(&batch, |x, _| {
                x.to_dtype(DType::F32)?.broadcast_mul(&var)?.mean_all()
            })
            .unwrap();
        let position = trainer.position("data");
        positions.push(position.map_or(0, |position| position.samples));
    }
    assert_eq!(positions, [0, 0, 6, 6, 6, 12]);
}

#[test]
fn counters_that_cannot_be_read_change_nothing() {
    let mut trainer = trainer();
    let state = trainer.state().unwrap();
    let damage = |text: &str| {
        let mut state = state.clone();
        state
            .metadata
            .insert("training".to_owned(), text.to_owned());
        state
    };
    for (text, problem) in [
        ("{", "training: EOF while parsing"),
        (
            r#"{"version":1,"updates":7}"#,
            "training: version 1, this crate reads version 2",
        ),
        (
            r#"{"version":2,"updates":7,"more":1}"#,
            "training: unknown field `more`",
        ),
    ] {
        let error = trainer.load_state(&damage(text)).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
        assert_eq!(trainer.updates(), 0);
    }
    // State that an optimizer saved by itself.
    let alone: StateDict = candle_headroom::optim::Commit::state(trainer.optimizer()).unwrap();
    trainer.load_state(&alone).unwrap();
    assert_eq!(trainer.updates(), 0);
}

#[test]
fn parts_of_a_mixture_come_by_weight() {
    let parts = Concat::new([100, 10, 7, 0].map(Numbers).into());
    let builder = Loader::builder(parts, collate)
        .mixture([1., 1., 2., 0.])
        .samples(40);
    let mut loader = builder.shuffle(3).batch(40).epochs(10).build().unwrap();
    let mut drawn = vec![0; 117];
    for batch in &mut loader {
        let batch = batch.unwrap();
        let mut shares = [0; 3];
        for &index in &batch.indices {
            drawn[index] += 1;
            shares[usize::from(index >= 100) + usize::from(index >= 110)] += 1;
        }
        assert_eq!(shares, [10, 10, 20]);
    }
    // A part is read through before any of its samples comes again: 100 draws from 100 samples, 100 from 10, 200 from 7.
    assert!(drawn[..100].iter().all(|times| *times == 1));
    assert!(drawn[100..110].iter().all(|times| *times == 10));
    assert!(drawn[110..].iter().all(|times| [28, 29].contains(times)));
}

#[test]
fn weights_that_cannot_be_meant_are_refused() {
    let build = |sizes: &[usize], weights: &[f64]| {
        let parts = Concat::new(sizes.iter().copied().map(Numbers).collect());
        Loader::builder(parts, collate).mixture(weights).build()
    };
    for weights in [
        &[1.][..],
        &[0., 0.],
        &[-1., 2.],
        &[f64::NAN, 1.],
        &[f64::INFINITY, 1.],
    ] {
        assert!(build(&[5, 5], weights).is_err(), "{weights:?}");
    }
    assert!(build(&[5, 0], &[1., 1.]).is_err());
    assert_eq!(
        build(&[3], &[1., 1.]).unwrap_err().to_string(),
        "`mixture` needs a weight of at least 0 for each of 1 parts, not all 0, got [1.0, 1.0]"
    );
}

/// What changes the order or the batches changes the position's text.
#[test]
fn a_position_of_another_mixture_is_refused() {
    let mixture = |sizes: [usize; 2], samples, weights: [f64; 2]| {
        let parts = Concat::new(sizes.map(Numbers).into());
        let builder = Loader::builder(parts, collate)
            .mixture(weights)
            .samples(samples);
        builder.batch(4).build().unwrap()
    };
    let mut loader = mixture([100, 10], 50, [1., 2.]);
    loader.next().unwrap().unwrap();
    let position = loader.state().clone();
    for mut other in [
        mixture([10, 100], 50, [1., 2.]),
        mixture([100, 10], 60, [1., 2.]),
        mixture([100, 10], 50, [2., 1.]),
    ] {
        let error = other.load_state(&position).unwrap_err().to_string();
        assert!(
            error.contains("order: saved 50 by 0 in 1024s from 1 of 100 + 2 of 10, here "),
            "{error}"
        );
    }
    // Of the time before the places of a mixture were mixed by chunks.
    let before = serde_json::to_string(&position).unwrap();
    let before = serde_json::from_str(&before.replace("by 0 in 1024s from", "by 0 from")).unwrap();
    let mut here = mixture([100, 10], 50, [1., 2.]);
    here.load_state(&position).unwrap();
    assert!(here.load_state(&before).is_err());
    let mut kept = numbers(10).batch(4).build().unwrap();
    kept.next().unwrap().unwrap();
    let mut dropping = numbers(10).batch(4).drop_last().build().unwrap();
    assert!(dropping.load_state(kept.state()).is_err());

    // A part that would never be drawn.
    let parts = Concat::new(vec![Numbers(5), Numbers(5)]);
    let refused = Loader::builder(parts, collate)
        .mixture([1., 0.001])
        .build()
        .unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("too little for one of an epoch's 10 samples"),
        "{refused}"
    );
    // The text of many parts stays short.
    let many = Concat::new((1..200).map(Numbers).collect());
    let loader = Loader::builder(many, collate)
        .mixture(vec![1.; 199])
        .build()
        .unwrap();
    let text = serde_json::to_string(loader.state()).unwrap();
    assert!(text.len() <= 240, "{text}");
}

#[test]
fn all_loaders_of_a_batch_are_remembered() {
    let mut trainer = trainer();
    let mut loaders =
        ["labelled", "unlabelled"].map(|name| numbers(9).batch(3).name(name).build().unwrap());
    let [a, b] = loaders
        .each_mut()
        .map(|loader| loader.next().unwrap().unwrap());
    let w = loss(&trainer, &a).unwrap();
    let waited = a.waited + b.waited;
    let report = trainer
        .step(&(a, b), |(a, b), _| {
            (a + b)?.to_dtype(DType::F32)?.mean_all()?.mul(&w)
        })
        .unwrap();
    assert_eq!(report.waited, Some(waited));
    for loader in &mut loaders {
        let next = loader.next().unwrap().unwrap();
        assert!(loader.resume(&trainer).unwrap().is_some());
        assert_eq!(loader.next().unwrap().unwrap().indices, next.indices);
    }
}

/// A place that a window no longer has, because samples cost something else now.
#[test]
fn other_costs_than_in_the_run_that_saved_are_an_error() {
    let cost = |most| numbers(100).batch_cost(most).build().unwrap();
    let mut loader = cost(10);
    loader
        .by_ref()
        .take(40)
        .for_each(|batch| drop(batch.unwrap()));
    let text = serde_json::to_string(loader.state())
        .unwrap()
        .replace("cost 10", "cost 1000");
    let position: Position = serde_json::from_str(&text).unwrap();
    let mut other = cost(1000);
    other.load_state(&position).unwrap();
    let error = other.next().unwrap().unwrap_err().to_string();
    assert!(
        error.contains("samples have other costs than in the run that saved the position"),
        "{error}"
    );
    assert!(other.next().is_none());
}

/// Trains with the next batches.
fn train(
    trainer: &mut AdaptiveTrainer<Sgd>,
    loader: &mut Loader<Tensor>,
    batches: usize,
) -> Vec<usize> {
    let mut seen = Vec::new();
    for batch in loader.by_ref().take(batches) {
        let batch = batch.unwrap();
        let w = loss(trainer, &batch).unwrap();
        trainer
            .step(&batch, |x, _| x.to_dtype(DType::F32)?.mean_all()?.mul(&w))
            .unwrap();
        seen.extend(held(&batch));
    }
    seen
}

/// As another process loads a trainer whose updates have consumed 5 batches of 2 of 24 samples.
fn restored() -> (AdaptiveTrainer<Sgd>, Vec<usize>) {
    let mut first = trainer();
    let seen = train(
        &mut first,
        &mut numbers(24).batch(2).shuffle(5).build().unwrap(),
        5,
    );
    let mut restored = trainer();
    restored.load_state(&first.state().unwrap()).unwrap();
    (restored, seen)
}

fn data_error<T: std::fmt::Debug>(done: candle_headroom::Result<T>) -> DataError {
    match done.unwrap_err() {
        Error::Data(error) => *error,
        other => panic!("{other}"),
    }
}

#[test]
fn a_restored_trainer_refuses_batches_from_elsewhere() {
    let (mut trainer, mut seen) = restored();
    let saved = trainer.position("data").unwrap().clone();
    let mut loader = numbers(24).batch(2).shuffle(5).build().unwrap();
    for _ in 0..7 {
        // The sixth would be the right one by chance.
        let batch = loader.next().unwrap().unwrap();
        if loader.state().samples == 12 {
            continue;
        }
        let mean = |x: Tensor, _: &_| x.to_dtype(DType::F32)?.mean_all();
        for is_accumulated in [false, true] {
            let error = data_error(match is_accumulated {
                true => trainer.accumulate(&batch, mean),
                false => trainer.step(&batch, mean).map(drop),
            });
            let text = error.to_string();
            assert!(
                text.contains("stopped before batch 0 of window 5 of epoch 0 of loader `data`")
                    && text.contains("`loader.resume(&trainer)`"),
                "{text}"
            );
            assert!(matches!(error, DataError::Position(_)));
        }
    }
    assert_eq!((trainer.updates(), trainer.samples()), (5, 0));
    assert_eq!(trainer.position("data"), Some(&saved));

    assert!(loader.resume(&trainer).unwrap().unwrap().changes.is_empty());
    // A batch that came in its place and failed may be left out, as in any run.
    let batch = loader.next().unwrap().unwrap();
    let failed = trainer.step(&batch, |_, _| -> candle_core::Result<Tensor> {
        candle_core::bail!("a bad batch")
    });
    assert!(failed.unwrap_err().to_string().contains("a bad batch"));
    seen.extend(held(&batch));
    seen.extend(train(&mut trainer, &mut loader, 99));
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..24));
}

#[test]
fn a_renamed_loader_is_refused() {
    let (mut trainer, _) = restored();
    let named = |name: &str| numbers(24).batch(2).shuffle(5).name(name).build().unwrap();
    let mut other = named("text");
    let error = data_error(other.resume(&trainer));
    let text = "the saved run did not read loader `text`, and no loader continues `data`: ";
    assert!(error.to_string().starts_with(text), "{error}");
    let batch = other.next().unwrap().unwrap();
    let error = data_error(trainer.step(&batch, |x, _| x.to_dtype(DType::F32)?.mean_all()));
    assert!(error.to_string().starts_with(text), "{error}");
    assert_eq!(trainer.updates(), 5);

    // Beside the saved loader a new one may begin, before or after that has given a batch.
    let mut loader = named("data");
    assert!(loader.resume(&trainer).unwrap().is_some());
    assert!(named("text").resume(&trainer).unwrap().is_none());
    train(&mut trainer, &mut named("text"), 1);
    train(&mut trainer, &mut loader, 1);
    train(&mut trainer, &mut named("code"), 1);
    assert_eq!(trainer.updates(), 8);
}

#[test]
fn changed_data_is_refused_or_reported() {
    type Builder = candle_headroom::data::LoaderBuilder<Numbers, Tensor>;
    let same = || numbers(24).batch(2).shuffle(5);
    type Change = fn(Builder) -> Builder;
    let cases: [(Change, &str, usize); 3] = [
        // 10 samples of 24 were read: two whole batches of 4.
        (
            |it| it.batch(4),
            "batches: saved 2 samples in 2, here 4 samples in 4",
            8,
        ),
        (
            |it| it.batch(5),
            "batches: saved 2 samples in 2, here 5 samples in 5",
            10,
        ),
        (
            |it| it.shuffle(6),
            "order: saved shuffled by 5, here shuffled by 6",
            10,
        ),
    ];
    for (change, expected, read) in cases {
        let (mut trainer, _) = restored();
        let mut loader = change(same()).build().unwrap();
        let error = data_error(loader.resume(&trainer));
        let text = error.to_string();
        assert!(text.starts_with("the saved position does not fit loader `data`: "));
        assert!(text.contains(expected), "{text}");
        let whole = all(&mut loader).concat();

        let mut loader = change(same()).accept_changed_data().build().unwrap();
        let changes = loader.resume(&trainer).unwrap().unwrap().changes;
        assert_eq!(changes, [expected]);
        assert_eq!(train(&mut trainer, &mut loader, 99), whole[read..]);
    }
    // Fewer samples than were read: the next epoch.
    let (mut trainer, _) = restored();
    let fewer = || numbers(6).batch(2).shuffle(5).accept_changed_data();
    let mut loader = fewer().epochs(2).build().unwrap();
    loader.resume(&trainer).unwrap().unwrap();
    assert_eq!(loader.state().epoch, 1);
    assert_eq!(train(&mut trainer, &mut loader, 99).len(), 6);
    // Another dataset of the same length, in another folder or of another name.
    let mut named = Loader::builder(Named("/one/train.bin"), collate)
        .build()
        .unwrap();
    named.next().unwrap().unwrap();
    let load = |name| {
        let mut other = Loader::builder(Named(name), collate).build().unwrap();
        other.load_state(named.state())
    };
    load("/two/train.bin").unwrap();
    let error = load("/one/test.bin").unwrap_err().to_string();
    assert!(
        error.contains("dataset: saved `train.bin`, here `test.bin`"),
        "{error}"
    );
}

struct Named(&'static str);

impl candle_headroom::data::Dataset for Named {
    type Sample = u32;

    fn len(&self) -> usize {
        3
    }

    fn get(&self, index: usize) -> Result<u32, candle_headroom::error::BoxedError> {
        Ok(index as u32)
    }

    fn name(&self) -> String {
        self.0.to_owned()
    }
}

/// A checkpoint that was saved before the first update has no positions. What was read since is not left out.
#[test]
fn a_run_that_goes_back_to_its_beginning_reads_all() {
    let mut trainer = trainer();
    let begin = trainer.state().unwrap();
    let mut loader = numbers(24).batch(2).shuffle(5).build().unwrap();
    let seen = train(&mut trainer, &mut loader, 5);
    trainer.load_state(&begin).unwrap();
    // Forgotten.
    let batch = loader.next().unwrap().unwrap();
    let error = data_error(trainer.step(&batch, |x, _| x.to_dtype(DType::F32)?.mean_all()));
    let text =
        "the trainer's saved run stopped before batch 0 of window 0 of epoch 0 of loader `data`";
    assert!(error.to_string().starts_with(text), "{error}");
    assert_eq!(trainer.updates(), 0);

    assert!(loader.resume(&trainer).unwrap().is_none());
    let all = train(&mut trainer, &mut loader, 99);
    assert_eq!((all.len(), &all[..10]), (24, &seen[..]));
    // Neither has a loader that the run began to read after it was saved.
    let after = trainer.state().unwrap();
    let mut later = numbers(9).batch(3).name("later").build().unwrap();
    train(&mut trainer, &mut later, 1);
    trainer.load_state(&after).unwrap();
    loader.resume(&trainer).unwrap();
    let batch = later.next().unwrap().unwrap();
    let error = data_error(trainer.step(&batch, |x, _| x.to_dtype(DType::F32)?.mean_all()));
    assert!(error.to_string().contains("of loader `later`"), "{error}");
    assert!(later.resume(&trainer).unwrap().is_none());
    assert_eq!(train(&mut trainer, &mut later, 99).len(), 9);
}

#[test]
fn data_that_begin_elsewhere_on_purpose_are_reported() {
    let place = |windows: usize| format!("batch 0 of window {windows} of epoch 0");
    let accepting = |name: &str| {
        let builder = numbers(24).batch(2).shuffle(5).name(name);
        builder.accept_changed_data().build().unwrap()
    };
    // Forgotten, and renamed, with and without `resume`.
    for (name, resumes) in [("data", false), ("text", false), ("text", true)] {
        let (mut trainer, _) = restored();
        let mut loader = accepting(name);
        if resumes {
            assert!(loader.resume(&trainer).unwrap().is_none());
        }
        let mut step = || {
            let batch = loader.next().unwrap().unwrap();
            let w = loss(&trainer, &batch).unwrap();
            let report = trainer.step(&batch, |x, _| x.to_dtype(DType::F32)?.mean_all()?.mul(&w));
            report.unwrap().events
        };
        let events = step();
        let [event @ Event::ContinuedElsewhere { saved, found, .. }] = &events[..] else {
            panic!("{events:?}")
        };
        let of_saved = (name == "data").then(|| place(5));
        assert_eq!(*saved, of_saved);
        assert_eq!(*found, place(0));
        let text = event.to_string();
        assert!(text.contains(name) && text.contains(&place(0)), "{text}");
        assert!(step().is_empty(), "once");
    }
    // Not where it continues.
    let (mut trainer, _) = restored();
    let mut loader = accepting("data");
    assert!(loader.resume(&trainer).unwrap().is_some());
    let batch = loader.next().unwrap().unwrap();
    let w = loss(&trainer, &batch).unwrap();
    let report = trainer.step(&batch, |x, _| x.to_dtype(DType::F32)?.mean_all()?.mul(&w));
    assert!(report.unwrap().events.is_empty());
}

#[test]
fn deliberate_jumps_stay_possible() {
    // Other data on purpose, without a resume.
    let (mut trainer, _) = restored();
    let mut loader = numbers(9).batch(3).accept_changed_data().build().unwrap();
    assert_eq!(train(&mut trainer, &mut loader, 99).len(), 9);
    // Within one process: a new loader for each epoch, and one that goes back.
    for _ in 0..2 {
        let mut loader = numbers(9).batch(3).build().unwrap();
        let begin = loader.state().clone();
        assert_eq!(train(&mut trainer, &mut loader, 2).len(), 6);
        loader.load_state(&begin).unwrap();
        assert_eq!(train(&mut trainer, &mut loader, 99).len(), 9);
    }
    // Evaluation does not move the position.
    let (mut trainer, _) = restored();
    let mut validation = numbers(9).batch(3).build().unwrap();
    let batch = validation.next().unwrap().unwrap();
    trainer
        .evaluate(&batch, |x, _| x.to_dtype(DType::F32)?.mean_all())
        .unwrap();
    let mut loader = numbers(24).batch(2).shuffle(5).build().unwrap();
    loader.resume(&trainer).unwrap().unwrap();
    assert_eq!(train(&mut trainer, &mut loader, 99).len(), 14);
}

/// Numbers that no run comes near, with which places could not be counted.
#[test]
fn impossible_positions_are_refused() {
    for field in ["epoch", "window", "batch", "samples"] {
        let mut loader = numbers(24).batch(2).shuffle(5).build().unwrap();
        let mut saved = serde_json::to_value(loader.state()).unwrap();
        saved[field] = u64::MAX.into();
        let saved = serde_json::from_value(saved).unwrap();
        let error = data_error(loader.load_state(&saved));
        assert!(matches!(error, DataError::Position(_)), "{error}");
        assert!(error.to_string().contains("at most 2^53"), "{error}");
        assert_eq!(all(&mut loader).concat().len(), 24, "{field}");
    }
}
