//! What batches are checked for, and how errors say it.

mod loader;
mod values;

use candle_core::{DType, Device, Tensor};
use candle_headroom::data::{Check, Tensors, check};

/// The error's text after "the batch: "; "" if there is none.
fn problem(batch: &impl Tensors, checks: &[Check]) -> String {
    match check(batch, checks) {
        Ok(()) => String::new(),
        Err(error) => {
            assert!(error.is_data(), "{error}");
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
    let f32 = || x().dtype(DType::F32);
    assert_eq!(
        problem(&tensor(&[1u8, 2]), &[f32()]),
        "tensor `x` has dtype u8, expected f32"
    );
    assert_eq!(
        problem(&tensor(&[1f32]), &[x().dtype(DType::U32)]),
        "tensor `x` has dtype f32, expected u32"
    );
    assert_eq!(problem(&tensor(&[1f32]), &[f32()]), "");
}

#[test]
fn shapes_are_compared() {
    let image = || x().shape([None, Some(3), Some(4), Some(5)]);
    let labels = || x().shape([None]);
    assert_eq!(problem(&zeros((2, 3, 4, 5)), &[image()]), "");
    assert_eq!(problem(&zeros(()), &[x().shape([])]), "");
    for (found, check, expected) in [
        (
            zeros((2, 4, 5, 3)),
            image(),
            "[2, 4, 5, 3], expected [_, 3, 4, 5]",
        ),
        (zeros((2, 60)), image(), "[2, 60], expected [_, 3, 4, 5]"),
        (zeros((7, 1)), labels(), "[7, 1], expected [_]"),
        (zeros(()), labels(), "[], expected [_]"),
        (zeros(3), x().shape([]), "[3], expected []"),
    ] {
        let expected = format!("tensor `x` has shape {expected}");
        assert_eq!(problem(&found, &[check]), expected);
    }
}

#[test]
fn empty_and_missing_tensors_are_found() {
    assert_eq!(
        problem(&zeros((0, 3)), &[x()]),
        "tensor `x` has no elements: its shape is [0, 3], expected at least one sample"
    );
    assert!(problem(&zeros((4, 0)), &[x().finite()]).contains("has no elements"));
    let none: Vec<Tensor> = Vec::new();
    assert_eq!(problem(&none, &[]), "");
    assert_eq!(
        problem(&vec![zeros(1)], &[x(), Check::new("labels")]),
        "tensor `labels` is missing: the batch has 1 of 2 tensors, expected one for each check"
    );
}
