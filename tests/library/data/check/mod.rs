//! What batches are checked for, and how errors say it.

mod loader;
mod values;

use candle_core::{DType, Device, Tensor};
use candle_headroom::Error;
use candle_headroom::data::{Check, Tensors, check};
use candle_headroom::error::DataError;

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
        "tensor `labels` is missing: the batch has 1 of 2 tensors, expected one for each check"
    );
}
