use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::nn::{Embedding, Module};

use crate::check::{agrees_on_rounding_each as agrees_on, numbers};
use crate::gpu::gpu;

/// Asserts that the rows which tokens take, and the gradient of their table, are those of the CPU.
fn compare(rows: usize, width: usize, tokens: &Tensor) -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    agrees_on(
        &device,
        &|x| {
            let layer = Embedding::new(x[0].clone(), width);
            layer.forward(&tokens.to_device(x[0].device())?)
        },
        &[numbers(&[rows, width], 1)],
    )
}

#[test]
fn tokens_that_share_rows() -> Result<()> {
    let many = (0..600u32).map(|at| at * at % 7);
    let many = Tensor::from_iter(many, &Device::Cpu)?.reshape((3, 200))?;
    compare(9, 5, &many)?; // rows 3, 5 to 8 are taken by none
    compare(2, 2100, &Tensor::new(&[1u32, 1, 0], &Device::Cpu)?)?;
    compare(3, 1, &Tensor::new(&[[2i64], [2]], &Device::Cpu)?)
}

/// The largest number of its type takes no row.
#[test]
fn tokens_without_a_row() -> Result<()> {
    compare(3, 4, &Tensor::new(&[2u32, u32::MAX, 0], &Device::Cpu)?)?;
    compare(256, 2, &Tensor::new(&[254u8, u8::MAX, 254], &Device::Cpu)?)?;
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let table = Var::zeros((3, 4), DType::F32, &device)?;
    let none = Tensor::zeros((2, 0), DType::U32, &device)?;
    let y = Embedding::new(table.as_tensor().clone(), 4).forward(&none)?;
    assert_eq!(y.dims(), [2, 0, 4]);
    Ok(())
}
