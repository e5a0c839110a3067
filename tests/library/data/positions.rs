//! Positions, and trainers that know how far their data was consumed.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{Consumer, Fixed};
use candle_headroom::data::{Concat, Loader, Position};
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
         build the loader as the run did that saved it, or begin anew"
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
    assert!(!loader.resume(&trainer).unwrap());
    let step = |trainer: &mut AdaptiveTrainer<Sgd>, loader: &mut Loader<Tensor>| {
        let batch = loader.next().unwrap().unwrap();
        let position = loader.state().clone();
        let w = loss(trainer, &batch).unwrap();
        let report = trainer
            .step(&batch, |x, _| x.to_dtype(DType::F32)?.mean_all()?.mul(&w))
            .unwrap();
        (position, report)
    };
    let consumed = |trainer: &AdaptiveTrainer<Sgd>| -> Option<Position> {
        trainer
            .position("data")
            .map(|text| serde_json::from_str(text).unwrap())
    };
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
    assert!(again.resume(&resumed).unwrap());
    assert_eq!(held(&again.next().unwrap().unwrap()), held(&batch));
    assert_eq!(resumed.updates(), 1);

    // With the update it counts.
    trainer.update().unwrap().unwrap();
    assert_eq!(consumed(&trainer), Some(loader.state().clone()));
    state = trainer.state().unwrap();
    resumed.load_state(&state).unwrap();
    assert!(again.resume(&resumed).unwrap());
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
        let position = trainer
            .position("data")
            .map(|text| serde_json::from_str::<Position>(text).unwrap());
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
            r#"{"version":2,"updates":7}"#,
            "training: version 2, this crate reads version 1",
        ),
        (
            r#"{"version":1,"updates":7,"more":1}"#,
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
    let parts = Concat(vec![Numbers(100), Numbers(20), Numbers(4)]);
    let builder = Loader::builder(parts, collate)
        .mixture([1., 1., 2.])
        .samples(80);
    let mut loader = builder.shuffle(1).batch(80).epochs(5).build().unwrap();
    let mut drawn = vec![0; 124];
    for batch in &mut loader {
        let batch = batch.unwrap();
        let mut shares = [0; 3];
        for &index in &batch.indices {
            drawn[index] += 1;
            shares[usize::from(index >= 100) + usize::from(index >= 120)] += 1;
        }
        assert_eq!(shares, [20, 20, 40]);
    }
    // A part is read through before any of its samples comes again.
    assert!(drawn[..100].iter().all(|times| *times == 1));
    assert!(drawn[100..120].iter().all(|times| *times == 5));
    assert!(drawn[120..].iter().all(|times| *times == 50));
    let refused = Loader::builder(Numbers(3), collate)
        .mixture([1., 1.])
        .build()
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "`mixture` needs a weight of at least 0 for each of 1 parts, not all 0, got [1.0, 1.0]"
    );
}

/// What changes the order or the batches changes the position's text.
#[test]
fn a_position_of_another_mixture_is_refused() {
    let mixture = |sizes: [usize; 2], samples, weights: [f64; 2]| {
        let parts = Concat(sizes.map(Numbers).into());
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
            error.contains("order: saved 50 by 0 from 1 of 100 + 2 of 10, here "),
            "{error}"
        );
    }
    let mut kept = numbers(10).batch(4).build().unwrap();
    kept.next().unwrap().unwrap();
    let mut dropping = numbers(10).batch(4).drop_last().build().unwrap();
    assert!(dropping.load_state(kept.state()).is_err());

    // A part that would never be drawn.
    let parts = Concat(vec![Numbers(5), Numbers(5)]);
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
    let many = Concat((1..200).map(Numbers).collect());
    let loader = Loader::builder(many, collate)
        .mixture(vec![1.; 199])
        .build()
        .unwrap();
    assert!(serde_json::to_string(loader.state()).unwrap().len() <= 200);
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
        assert!(loader.resume(&trainer).unwrap());
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
