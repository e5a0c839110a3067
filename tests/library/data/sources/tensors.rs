use std::collections::HashMap;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::Parts;
use candle_headroom::data::{Dataset, TensorDataset};

use super::is_out_of_range;

fn numbers() -> Tensor {
    let numbers = Tensor::arange(0u32, 24, &Device::Cpu).unwrap();
    numbers.reshape((4, 3, 2)).unwrap()
}

#[test]
fn a_sample_is_one_row_of_each_tensor_and_a_view() {
    let y = Tensor::arange(0i64, 4, &Device::Cpu).unwrap();
    let pairs = TensorDataset::new((numbers(), y)).unwrap();
    assert_eq!((pairs.len(), pairs.cost(2).unwrap()), (4, 1));
    for index in 0..4 {
        let (x, y) = pairs.get(index).unwrap();
        let first = 6 * index as u32;
        let expected = [
            [first, first + 1],
            [first + 2, first + 3],
            [first + 4, first + 5],
        ];
        assert_eq!(x.to_vec2::<u32>().unwrap(), expected);
        assert_eq!(y.to_scalar::<i64>().unwrap(), index as i64);
        // A view begins inside of the storage of the whole.
        assert_eq!(x.layout().start_offset(), 6 * index);
    }
    is_out_of_range(&pairs);
}

#[test]
fn a_transposed_tensor_has_the_rows_that_it_shows() {
    let turned = TensorDataset::new(numbers().t().unwrap()).unwrap();
    assert_eq!(
        turned.get(1).unwrap().to_vec2::<u32>().unwrap(),
        [[6, 8, 10], [7, 9, 11]]
    );
}

#[test]
fn any_number_of_tensors_and_names_will_do() {
    let y = Tensor::zeros((4, 1), DType::F32, &Device::Cpu).unwrap();
    let list = TensorDataset::new(vec![numbers(), y.clone()]).unwrap();
    assert_eq!(list.get(3).unwrap()[1].dims(), [1]);
    let parts = TensorDataset::new(Parts(vec![y.clone()])).unwrap();
    assert_eq!(parts.get(0).unwrap().0.len(), 1);
    let named = TensorDataset::new(HashMap::from([("x", numbers()), ("y", y)])).unwrap();
    assert_eq!(named.get(3).unwrap()["x"].dims(), [3, 2]);
}

#[test]
fn tensors_without_common_rows_are_refused() {
    let scalar = Tensor::new(1f32, &Device::Cpu).unwrap();
    let three = Tensor::zeros(3, DType::F32, &Device::Cpu).unwrap();
    let refused = |batch: Vec<Tensor>, begin: &str| {
        let error = TensorDataset::new(batch).unwrap_err();
        assert!(
            error.is_batch() && error.to_string().starts_with(begin),
            "{error}"
        );
    };
    refused(vec![], "the batch has no parts");
    refused(vec![scalar], "a 0-dimensional tensor has no samples");
    refused(
        vec![numbers(), numbers(), three],
        "part 2 of the batch holds 3 samples but the first part holds 4",
    );
}

#[test]
fn no_gradient_flows_into_the_samples() {
    let var = Var::ones((2, 2), DType::F32, &Device::Cpu).unwrap();
    let rows = TensorDataset::new(var.as_tensor().clone()).unwrap();
    let gradients = rows.get(0).unwrap().sum_all().unwrap().backward().unwrap();
    assert!(gradients.get(&var).is_none());
}
