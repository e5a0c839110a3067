//! Sums and copies of tensors that users ask for.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::Error;
use candle_headroom::error::GroupError;

use crate::launch::together;

#[test]
fn sums_of_all_shapes_and_types() {
    together(3, |group| {
        let rank = group.rank() as f64;
        for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
            for dims in [
                vec![],
                vec![1],
                vec![7],
                vec![0],
                vec![3, 5],
                vec![2, 3, 700],
            ] {
                let tensor = Tensor::full(rank as f32 + 1., dims.as_slice(), &Device::Cpu)
                    .expect("a tensor");
                let tensor = tensor.to_dtype(dtype).expect("a tensor");
                let sum = group.sum(&tensor).expect("a sum");
                assert_eq!((sum.dims(), sum.dtype()), (dims.as_slice(), dtype));
                let sum = sum
                    .to_dtype(DType::F64)
                    .and_then(|sum| sum.flatten_all())
                    .expect("a sum");
                assert!(
                    sum.to_vec1::<f64>()
                        .expect("a sum")
                        .iter()
                        .all(|value| *value == 6.)
                );
            }
        }
        // A transposed view, whose elements do not lie in order.
        let tensor = Tensor::arange(0f32, 6., &Device::Cpu)
            .and_then(|it| it.reshape((2, 3))?.t())
            .expect("a view");
        let sum = group
            .sum(&tensor)
            .and_then(|sum| Ok(sum.to_vec2::<f32>()?))
            .expect("a sum");
        assert_eq!(sum, [[0., 9.], [3., 12.], [6., 15.]]);
    });
}

#[test]
fn copies_from_any_rank_and_refuses_what_differs() {
    together(3, |group| {
        for from in 0..3 {
            let var = Var::from_tensor(
                &Tensor::full(group.rank() as u32, (4, 3), &Device::Cpu).expect("a tensor"),
            );
            let var = var.expect("a variable");
            group.broadcast(&var, from).expect("a copy");
            let values = var
                .flatten_all()
                .and_then(|it| it.to_vec1::<u32>())
                .expect("values");
            assert_eq!(values, [from as u32; 12]);
        }
        let tensor =
            Tensor::zeros(3 + group.rank() / 2, DType::F32, &Device::Cpu).expect("a tensor");
        let error = group.sum(&tensor).expect_err("other shapes");
        assert!(error.to_string().contains("rank 2 has [4] F32"), "{error}");
        assert!(
            matches!(&error, Error::Group(error) if matches!(**error, GroupError::Different { .. }))
        );
        assert!(
            group
                .broadcast(&tensor.narrow(0, 0, 3).expect("a part"), 3)
                .is_err()
        );
        group.barrier().expect("the group goes on");
    });
}
