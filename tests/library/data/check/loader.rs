use candle_core::{DType, Device, Tensor};
use candle_headroom::data::{Check, Items, Loader, LoaderBuilder, Stream, stack};
use candle_headroom::error::BoxedError;

use super::{tensor, x, zeros};

type Pair = (Tensor, Tensor);

/// 100 samples of a number and a mask, which `collate` makes one for all; number 13 of 0..100 is NaN.
fn with_mask(samples: Vec<Tensor>) -> Result<Pair, BoxedError> {
    Ok((stack(samples)?, zeros((3, 3))))
}

fn numbers(bad: usize) -> Items<Tensor> {
    let number = |index| if index == bad { f32::NAN } else { index as f32 };
    Items((0..100).map(|index| tensor(number(index))).collect())
}

fn loader(bad: usize) -> LoaderBuilder<Items<Tensor>, Pair> {
    let loader = Loader::builder(numbers(bad), with_mask)
        .batch(10)
        .shuffle(3);
    loader
        .check(x().finite())
        .check(Check::new("mask").shape([Some(3), Some(3)]).range(0..1))
}

/// The error names the index in the dataset, wherever the order has put the sample.
#[test]
fn a_loader_names_the_sample() {
    for workers in [0, 2] {
        let mut first = loader(usize::MAX).workers(workers).build().unwrap();
        let indices = first.next().unwrap().unwrap().indices.clone();
        for (place, index) in indices.into_iter().enumerate() {
            let mut loader = loader(index).workers(workers).build().unwrap();
            let error = loader.next().unwrap().unwrap_err();
            assert!(error.is_data(), "{error}");
            let expected =
                format!(": sample {index}, tensor `x` holds NaN at [{place}], expected ");
            assert!(error.to_string().contains(&expected), "{error}");
        }
    }
}

/// By default the first batch is looked at, also after a move; with `check_every_batch` all are.
#[test]
fn a_loader_checks_the_first_batch_or_every_one() {
    let errors = |bad, every: bool| {
        let builder = loader(bad);
        let builder = if every {
            builder.check_every_batch()
        } else {
            builder
        };
        let batches: Vec<_> = builder
            .build()
            .unwrap()
            .map(|batch| batch.is_err())
            .collect();
        assert_eq!(batches.len(), 10);
        batches.iter().position(|is_error| *is_error)
    };
    let order: Vec<_> = loader(usize::MAX).build().unwrap().collect();
    let bad = order[6].as_ref().unwrap().indices[2];
    assert_eq!((errors(bad, false), errors(bad, true)), (None, Some(6)));
    assert_eq!(errors(usize::MAX, true), None);

    let mut before = loader(usize::MAX).build().unwrap();
    before
        .by_ref()
        .take(6)
        .for_each(|batch| drop(batch.unwrap()));
    let mut moved = loader(bad).build().unwrap();
    moved.load_state(before.state()).unwrap();
    assert!(moved.next().unwrap().is_err() && moved.next().unwrap().is_ok());
}

/// A value of a tensor without one row for each sample belongs to no sample; a rank without samples may have no elements.
#[test]
fn a_loader_does_not_blame_the_wrong_sample() {
    let numbers = Stream(|_| Ok((0..4).map(|number| Ok(number as f32))));
    let collate = |numbers: Vec<f32>| Ok(Tensor::new(numbers, &Device::Cpu)?);
    let range = x().dtype(DType::F32).range(0..2);
    let loader = |rank| {
        Loader::builder(numbers, collate)
            .rank(rank, 5)
            .batch(4)
            .check(range.clone())
    };
    let found = |rank| loader(rank).build().unwrap().next().unwrap();
    // Ranks 0 to 4 of 5 have 0, 1, 1, 1 and 1 of 4 samples.
    assert!(found(0).is_ok_and(|batch| batch.indices.is_empty()));
    assert!(found(1).is_ok() && found(2).is_ok());
    let text = found(3).unwrap_err().to_string();
    assert!(
        text.contains("sample 2, tensor `x` holds 2 at [0], expected values in 0..2"),
        "{text}"
    );

    let mut masks = Loader::builder(Items(vec![tensor(1f32)]), with_mask)
        .check(x())
        .check(Check::new("mask").range(1..))
        .build()
        .unwrap();
    let text = masks.next().unwrap().unwrap_err().to_string();
    assert!(
        text.contains(": tensor `mask` holds 0 at [0, 0], expected values in 1.."),
        "{text}"
    );
}
