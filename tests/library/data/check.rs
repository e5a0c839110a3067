//! What batches are checked for, and how errors say it.

use candle_core::{DType, Device, Tensor};
use candle_headroom::Error;
use candle_headroom::data::{Check, Loader, Stream, Tensors, check, stack};
use candle_headroom::error::DataError;
use half::{bf16, f16};

/// The error's text after "the batch: "; "" if there is none.
fn problem(batch: &impl Tensors, checks: &[Check]) -> String {
    match check(batch, checks) {
        Ok(()) => String::new(),
        Err(error) => {
            assert!(
                matches!(&error, Error::Data(error) if matches!(**error, DataError::Unexpected { .. }))
            );
            let text = error.to_string();
            text.strip_prefix("the batch: ").unwrap().to_owned()
        }
    }
}

fn x() -> Check {
    Check::new("x")
}

fn tensor(values: impl candle_core::NdArray) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap()
}

fn zeros(shape: impl Into<candle_core::Shape>) -> Tensor {
    Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap()
}

#[test]
fn dtypes_are_compared() {
    let bytes = tensor(&[1u8, 2]);
    let f32 = || x().dtype(DType::F32);
    assert_eq!(
        problem(&bytes, &[f32()]),
        "tensor `x` has dtype u8, expected f32; call `.to_dtype(DType::F32)`, and divide pixels by 255"
    );
    assert_eq!(
        problem(&tensor(&[1f64]), &[f32()]),
        "tensor `x` has dtype f64, expected f32; call `.to_dtype(DType::F32)`, or make it of `f32` numbers"
    );
    assert_eq!(
        problem(&tensor(&[1f32]), &[x().dtype(DType::U32)]),
        "tensor `x` has dtype f32, expected u32; call `.to_dtype(DType::U32)` if its values are whole numbers"
    );
    assert_eq!(
        problem(&tensor(&[1i64]), &[x().dtype(DType::U32)]),
        "tensor `x` has dtype i64, expected u32; call `.to_dtype(DType::U32)`"
    );
    assert_eq!(problem(&tensor(&[1f32]), &[f32()]), "");
}

/// Each remedy gives what was asked for.
#[test]
fn shapes_are_compared() {
    let image = || x().shape([None, Some(3), Some(4), Some(5)]);
    assert_eq!(problem(&zeros((2, 3, 4, 5)), &[image()]), "");
    let last = zeros((2, 4, 5, 3));
    assert_eq!(
        problem(&last, &[image()]),
        "tensor `x` has shape [2, 4, 5, 3], expected [_, 3, 4, 5]; if the channels come last, call `.permute((0, 3, 1, 2))`"
    );
    assert_eq!(
        problem(&last.permute((0, 3, 1, 2)).unwrap(), &[image()]),
        ""
    );

    let flat = zeros((2, 60));
    assert_eq!(
        problem(&flat, &[image()]),
        "tensor `x` has shape [2, 60], expected [_, 3, 4, 5]; call `.reshape(((), 3, 4, 5))`"
    );
    assert_eq!(
        problem(&flat.reshape(((), 3, 4, 5)).unwrap(), &[image()]),
        ""
    );

    let labels = || x().shape([None]);
    assert_eq!(
        problem(&zeros((7, 1)), &[labels()]),
        "tensor `x` has shape [7, 1], expected [_]; call `.squeeze(1)`"
    );
    assert!(problem(&zeros((1, 1)), &[labels()]).ends_with("call `.squeeze(1)`"));
    assert!(
        problem(&zeros(()), &[labels()])
            .ends_with("has shape [], expected [_]; call `.unsqueeze(0)`")
    );
    assert!(
        problem(&zeros((28, 28)), &[x().shape([None, Some(28), Some(28)])])
            .ends_with("[_, 28, 28]; call `.unsqueeze(0)`")
    );
    // Rows and columns changed places: `reshape` would mix up the elements.
    assert_eq!(
        problem(&zeros((2, 3, 5, 4)), &[image()]),
        "tensor `x` has shape [2, 3, 5, 4], expected [_, 3, 4, 5]"
    );
    assert_eq!(problem(&zeros(()), &[x().shape([])]), "");
    assert_eq!(
        problem(&zeros(3), &[x().shape([])]),
        "tensor `x` has shape [3], expected []"
    );
}

#[test]
fn labels_are_checked_at_the_ends_of_their_range() {
    let labels = |range: std::ops::Range<i64>| x().range(range);
    assert_eq!(problem(&tensor(&[0u32, 9, 4]), &[labels(0..10)]), "");
    assert_eq!(
        problem(&tensor(&[1u32, 2, 10]), &[labels(0..10)]),
        "sample 2, tensor `x` holds 10 at [2], expected values in 0..10; they seem to count from 1: subtract 1"
    );
    let whole = "the range must cover all classes, or the whole vocabulary with its added tokens";
    assert_eq!(
        problem(&tensor(&[0u32, 10, 11]), &[labels(0..10)]),
        format!("sample 1, tensor `x` holds 10 at [1], expected values in 0..10; {whole}")
    );
    assert_eq!(
        problem(&tensor(&[[3i64, 4], [5, -100]]), &[labels(0..10)]),
        "sample 1, tensor `x` holds -100 at [1, 1], expected values in 0..10; call `.ignore(-100)` if it marks what does not count"
    );
    assert_eq!(
        problem(
            &tensor(&[[3i64, 4], [5, -100]]),
            &[labels(0..10).ignore(-100)]
        ),
        ""
    );
    // candle's own mark for a row that does not count.
    let none = tensor(&[1u32, u32::MAX]);
    assert!(
        problem(&none, &[labels(0..10)])
            .ends_with("call `.ignore(4294967295)` if it marks what does not count")
    );
    assert_eq!(
        problem(&none, &[labels(0..10).ignore(i64::from(u32::MAX))]),
        ""
    );

    assert_eq!(
        problem(&tensor(&[i64::MIN, i64::MAX]), &[x().range(..)]),
        ""
    );
    assert_eq!(problem(&tensor(&[i64::MAX]), &[x().range(..=i64::MAX)]), "");
    assert!(
        problem(&tensor(&[i64::MAX]), &[x().range(..i64::MAX)])
            .contains("in ..9223372036854775807;")
    );
    assert!(
        problem(&tensor(&[0i64]), &[x().range(1..)])
            .contains("holds 0 at [0], expected values in 1..;")
    );
    assert!(
        problem(&tensor(&[0u8]), &[x().range(5..5)])
            .contains("holds 0 at [0], expected values in 5..5;")
    );
    assert!(problem(&tensor(&[200u8]), &[x().range(0..=199)]).contains("0..=199"));
    // Only what was declared counts, and the places after the last check are free.
    assert_eq!(
        problem(&(tensor(&[200u8]), tensor(&[f32::NAN])), &[x()]),
        ""
    );
}

#[test]
fn floats_are_checked_in_every_type() {
    let finite = || x().finite();
    let at_4 = "sample 2, tensor `x` holds NaN at [2, 0], expected finite values";
    let values = [0f64, 1., 2., 3., f64::NAN, f64::INFINITY];
    for dtype in [
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::F8E4M3,
    ] {
        let values = tensor(&values)
            .reshape((3, 2))
            .unwrap()
            .to_dtype(dtype)
            .unwrap();
        assert_eq!(problem(&values, &[finite()]), at_4, "{dtype:?}");
        assert_eq!(problem(&values, &[x()]), "");
        assert_eq!(
            problem(&values.narrow(0, 0, 2).unwrap(), &[finite().range(0..=3)]),
            "",
            "{dtype:?}"
        );
        let problem = problem(&values, &[x().range(0..=3)]);
        assert!(
            problem
                .starts_with("sample 2, tensor `x` holds NaN at [2, 0], expected values in 0..=3")
        );
    }
    let infinite = tensor(&[[bf16::ONE, bf16::NEG_INFINITY]]);
    assert_eq!(
        problem(&infinite, &[finite()]),
        "sample 0, tensor `x` holds -inf at [0, 1], expected finite values"
    );
    assert_eq!(
        problem(&tensor(f16::NAN), &[finite()]),
        "tensor `x` holds NaN, expected finite values"
    );

    let pixels = tensor(&[[0f32, 0.5], [1., 128.]]);
    assert_eq!(
        problem(&pixels, &[x().range(0..=1)]),
        "sample 1, tensor `x` holds 128 at [1, 1], expected values in 0..=1; divide pixels by 255"
    );
    assert_eq!(problem(&(pixels / 255.).unwrap(), &[x().range(0..=1)]), "");
    // An open end is open: 1 is not in it.
    assert_eq!(
        problem(&tensor(&[1f32]), &[x().range(0..1)]),
        "sample 0, tensor `x` holds 1 at [0], expected values in 0..1"
    );
}

/// The sample and the place are those of the tensor as it is seen, not as it is stored.
#[test]
fn views_are_read_as_they_are() {
    let stored = tensor(&[[0f32, 1., 2.], [3., f32::NAN, 5.]]);
    assert_eq!(
        problem(&stored.t().unwrap(), &[x().finite()]),
        "sample 1, tensor `x` holds NaN at [1, 1], expected finite values"
    );
    let last = stored.narrow(1, 2, 1).unwrap();
    assert_eq!(problem(&last, &[x().finite().varies()]), "");
    let below = stored.narrow(0, 1, 1).unwrap();
    assert!(problem(&below, &[x().finite()]).contains("sample 0, tensor `x` holds NaN at [0, 1]"));
    let broadcast = tensor(&[1u32, 2]).broadcast_as((3, 2)).unwrap();
    assert_eq!(
        problem(&broadcast, &[x().varies()]),
        "tensor `x` holds 3 samples that are all equal, expected samples that differ; look at what reads them"
    );
    // A block boundary of the search, and the last element.
    for place in [1023, 1024, 4999] {
        let mut values = vec![0u32; 5000];
        values[place] = 7;
        let found = problem(&tensor(values), &[x().range(0..7)]);
        assert!(found.starts_with(&format!("sample {place}, tensor `x` holds 7 at [{place}]")));
    }
}

#[test]
fn constant_and_empty_batches_are_found() {
    let varies = || x().varies();
    assert_eq!(
        problem(&zeros((4, 3)), &[varies()]),
        "tensor `x` holds only 0, expected values that differ; shuffle sorted samples, and look at what makes this tensor"
    );
    assert!(problem(&tensor(&[5u32, 5, 5]), &[varies()]).contains("holds only 5"));
    assert!(
        problem(&tensor(&[[1i64, 2], [1, 2]]), &[varies()])
            .contains("2 samples that are all equal")
    );
    for varied in [
        tensor(&[[1i64, 2]]),
        tensor(&[[1i64, 2], [1, 3]]),
        tensor(&[[7i64]]),
        tensor(7i64),
    ] {
        assert_eq!(problem(&varied, &[varies()]), "");
    }
    assert_eq!(
        problem(&zeros((0, 3)), &[x()]),
        "tensor `x` has no elements: its shape is [0, 3], expected at least one sample"
    );
    assert!(problem(&zeros((4, 0)), &[varies().finite()]).contains("has no elements"));
    let none: Vec<Tensor> = Vec::new();
    assert_eq!(problem(&none, &[]), "");
    assert_eq!(
        problem(&vec![zeros(1)], &[x(), Check::new("labels")]),
        "tensor `labels` is missing: the batch has 1 tensors, expected 2, one for each check"
    );
}

type Pair = (Tensor, Tensor);

/// 100 samples of a number and a mask, which `collate` makes one for all; number 13 of 0..100 is NaN.
fn with_mask(samples: Vec<Tensor>) -> Result<Pair, candle_headroom::error::BoxedError> {
    Ok((stack(samples)?, zeros((3, 3))))
}

fn numbers(bad: usize) -> Vec<Tensor> {
    let number = |index| if index == bad { f32::NAN } else { index as f32 };
    (0..100).map(|index| tensor(number(index))).collect()
}

fn loader(bad: usize) -> candle_headroom::data::LoaderBuilder<Vec<Tensor>, Pair> {
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
            let Error::Data(error) = loader.next().unwrap().unwrap_err() else {
                panic!("a data error")
            };
            let DataError::Unexpected {
                index: found,
                tensor,
                found: what,
                ..
            } = *error
            else {
                panic!("{error}")
            };
            assert_eq!((found, tensor.as_str()), (Some(index), "x"));
            assert_eq!(what, format!("holds NaN at [{place}]"));
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
    moved.move_to(before.position()).unwrap();
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

    let mut masks = Loader::builder(vec![tensor(1f32)], with_mask)
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
