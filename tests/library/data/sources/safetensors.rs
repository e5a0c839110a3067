use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use candle_headroom::data::{Dataset, SafetensorsDataset};
use tempfile::NamedTempFile;

use super::{at, file, is_out_of_range, refused, shorten};

fn saved(tensors: &[(&str, Tensor)]) -> NamedTempFile {
    let file = file(b"");
    let tensors: HashMap<_, _> = tensors.iter().cloned().collect();
    candle_core::safetensors::save(&tensors, file.path()).unwrap();
    file
}

fn zeros(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(shape, dtype, &Device::Cpu).unwrap()
}

#[test]
fn rows_of_every_type_come_back_as_they_were_written() {
    let dtypes = [
        DType::U8,
        DType::U32,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];
    let numbers = Tensor::arange(0f32, 42., &Device::Cpu)
        .unwrap()
        .reshape((7, 3, 2))
        .unwrap();
    let tensors = dtypes.map(|dtype| numbers.to_dtype(dtype).unwrap());
    let names = dtypes.map(|dtype| dtype.as_str());
    let file = saved(&names.into_iter().zip(tensors.clone()).collect::<Vec<_>>());
    let rows = SafetensorsDataset::builder(file.path())
        .tensors(names)
        .open()
        .unwrap();
    assert_eq!(rows.len(), 7);
    for index in 0..7 {
        let sample = rows.get(index).unwrap();
        for (found, expected) in sample.iter().zip(&tensors) {
            assert_eq!(
                (found.dtype(), found.dims()),
                (expected.dtype(), &[3, 2][..])
            );
            let values = |tensor: &Tensor| {
                tensor
                    .to_dtype(DType::F64)
                    .unwrap()
                    .to_vec2::<f64>()
                    .unwrap()
            };
            assert_eq!(values(found), values(&expected.get(index).unwrap()));
        }
    }
    is_out_of_range(&rows);
}

#[test]
fn all_tensors_in_the_order_of_their_names_or_those_asked_for() {
    let file = saved(&[
        ("y", zeros(&[5], DType::U32)),
        ("x", zeros(&[5, 2], DType::F32)),
        ("z", zeros(&[4], DType::F32)),
    ]);
    let open = |names: &[&str]| {
        SafetensorsDataset::builder(file.path())
            .tensors(names.iter().copied())
            .open()
    };
    let types = |rows: SafetensorsDataset| {
        let sample = rows.get(0).unwrap();
        sample.iter().map(Tensor::dtype).collect::<Vec<_>>()
    };
    assert_eq!(types(open(&["y", "x"]).unwrap()), [DType::U32, DType::F32]);
    let all = SafetensorsDataset::builder(file.path())
        .open()
        .expect_err("z has 4 rows");
    assert_eq!(at(&all).2, "tensor `z` has 4 rows, tensor `x` has 5");
    assert_eq!(
        at(&open(&["x", "w"]).unwrap_err()).2,
        "has no tensor `w`; it has x, y, z"
    );
    let none = open(&[]).unwrap_err();
    assert!(
        none.is_data() && none.to_string().contains("select at least one tensor"),
        "{none}"
    );
}

#[test]
fn what_is_no_row_of_a_tensor_is_refused() {
    let scalar = saved(&[("x", zeros(&[], DType::F32))]);
    let error = SafetensorsDataset::builder(scalar.path())
        .open()
        .unwrap_err();
    assert_eq!(at(&error).2, "tensor `x` has no dimension");
    // A type that candle lacks, and one of which two elements share a byte.
    for dtype in ["BOOL", "F4"] {
        let header = format!(
            "{{\"x\":{{\"dtype\":\"{dtype}\",\"shape\":[2,2],\"data_offsets\":[0,{}]}}}}",
            if dtype == "F4" { 2 } else { 4 }
        );
        let mut content = (header.len() as u64).to_le_bytes().to_vec();
        content.extend(header.as_bytes());
        content.extend(if dtype == "F4" { &[0; 2][..] } else { &[0; 4] });
        let file = file(&content);
        let error = SafetensorsDataset::builder(file.path()).open().unwrap_err();
        assert!(
            at(&error).2.ends_with(", which candle cannot hold"),
            "{error}"
        );
    }
}

#[test]
fn no_rows_are_no_samples() {
    let empty = saved(&[("x", zeros(&[0, 3], DType::F32))]);
    let rows = SafetensorsDataset::builder(empty.path()).open().unwrap();
    assert!(rows.is_empty());
    is_out_of_range(&rows);
}

#[test]
fn a_shortened_file_is_an_error() {
    let file = saved(&[("x", zeros(&[5_000, 3], DType::F32))]);
    let rows = SafetensorsDataset::builder(file.path()).open().unwrap();
    shorten(&file, 4_096);
    let error = refused(&rows, 4_999);
    assert_eq!(at(&*error).0, file.path());
}

/// The header states its length, which is compared with the file's before memory is taken for it.
#[test]
fn a_header_of_any_length_is_refused() {
    for len in [0, 1, 100, 200_000_000, 1 << 40, u64::MAX - 7, u64::MAX] {
        let file = file(&[&len.to_le_bytes()[..], b"{}"].concat());
        let error = SafetensorsDataset::builder(file.path()).open().unwrap_err();
        assert_eq!(at(&error).0, file.path(), "{len}");
    }
}
