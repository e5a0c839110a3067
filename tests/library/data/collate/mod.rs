//! How samples become batches.

mod attention;
mod pack;
mod pad;

use candle_core::{DType, Device, Tensor};
use candle_headroom::data::{Dataset, Loader, stack};
use candle_headroom::error::BoxedError;

fn tensor(values: impl candle_core::NdArray) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap()
}

fn zeros(shape: impl Into<candle_core::Shape>) -> Tensor {
    Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap()
}

fn text<T>(result: Result<T, BoxedError>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn samples_are_stacked_place_by_place() {
    let all = Tensor::arange(0f32, 12., &Device::Cpu)
        .unwrap()
        .reshape((3, 4))
        .unwrap();
    // Views with strides, and numbers without a dimension.
    let columns = (0..4).map(|column| {
        let label = tensor(column as u32);
        (all.narrow(1, column, 1).unwrap().squeeze(1).unwrap(), label)
    });
    let (stacked, labels) = stack(columns.collect()).unwrap();
    assert_eq!(
        stacked.to_vec2::<f32>().unwrap(),
        all.t().unwrap().to_vec2::<f32>().unwrap()
    );
    assert_eq!(labels.to_vec1::<u32>().unwrap(), [0, 1, 2, 3]);
    let [one, two] = [vec![zeros((2, 0))], vec![zeros((2, 0))]];
    assert_eq!(stack(vec![one, two]).unwrap()[0].dims(), [2, 2, 0]);
}

#[test]
fn samples_that_do_not_stack_are_named() {
    let pair = |features: usize, label: Tensor| (zeros((3, features)), label);
    assert_eq!(
        text(stack(vec![
            pair(32, tensor(1u32)),
            pair(32, tensor(1u32)),
            pair(30, tensor(1u32))
        ])),
        "tensor 0 of the sample at place 2 has shape [3, 30], that at place 0 has [3, 32]: crop, resize or pad them"
    );
    assert_eq!(
        text(stack(vec![pair(32, tensor(1u32)), pair(32, tensor(1i64))])),
        "tensor 1 of the sample at place 1 has dtype i64, that at place 0 has u32"
    );
    assert_eq!(
        text(stack(vec![vec![zeros(1)], vec![zeros(1), zeros(1)]])),
        "the sample at place 1 has 2 tensors, that at place 0 has 1"
    );
    assert_eq!(
        text(stack(Vec::<Tensor>::new())),
        "there are no samples to stack"
    );
}

fn documents(lengths: &[usize]) -> Vec<Vec<u32>> {
    let mut next = 0;
    let document = |length: &usize| {
        next += length;
        ((next - length) as u32..next as u32).collect()
    };
    lengths.iter().map(document).collect()
}

/// The sample that does not stack is among the indices of the error.
#[test]
fn a_loader_says_which_samples_do_not_make_a_batch() {
    struct Images;
    impl Dataset for Images {
        type Sample = Tensor;

        fn len(&self) -> usize {
            6
        }

        fn get(&self, index: usize) -> Result<Tensor, BoxedError> {
            Ok(zeros(if index == 4 { 31 } else { 32 }))
        }

        fn name(&self) -> String {
            "images".to_owned()
        }
    }
    let mut loader = Loader::builder(Images, stack).batch(3).build().unwrap();
    assert!(loader.next().unwrap().is_ok());
    assert_eq!(
        loader.next().unwrap().unwrap_err().to_string(),
        "images: samples [3, 4, 5] cannot be made into a batch: tensor 0 of the sample at place 1 has shape [31], \
         that at place 0 has [32]: crop, resize or pad them"
    );
}
