//! Layers one after the other: an output that no backward pass needs is freed when the next layer has it.

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_headroom::nn::rotary_emb::rope;
use candle_headroom::nn::{Linear, ops};

use super::{assert_kept, var};

#[test]
fn outputs_that_nobody_needs_are_freed() -> Result<()> {
    let _alone = crate::support::alone();
    let (x, bytes) = var(&[4, 64, 256, 16])?;
    let matrix = |seed: f64| Tensor::full(seed, (16, 16), &Device::Cpu)?.to_dtype(DType::F32);
    let frozen = [
        Linear::new(matrix(0.1)?, None),
        Linear::new(matrix(0.2)?, None),
    ];
    let tables = Tensor::zeros((256, 8), DType::F32, &Device::Cpu)?;
    let [first, second] = &frozen;
    assert_kept("frozen layers", bytes, || {
        second.forward(&first.forward(&x)?)
    });
    assert_kept("a rotation of a frozen layer", bytes, || {
        rope(&first.forward(&x)?, &tables, &tables)
    });
    assert_kept("dropout of a frozen layer", bytes, || {
        ops::dropout(&first.forward(&x)?, 0.5)
    });
    assert_kept("a sum", bytes, || {
        ops::add(&first.forward(&x)?, &second.forward(&x)?)
    });
    // The two inputs and the output.
    assert_kept("a gate", 3 * bytes, || {
        ops::silu_mul(&first.forward(&x)?, &second.forward(&x)?)
    });
    let (weight, _) = var(&[16, 16])?;
    let trained = Linear::new(weight.as_tensor().clone(), None);
    // The input of the trained layer and the output.
    assert_kept("a trained layer after a frozen one", 2 * bytes, || {
        trained.forward(&first.forward(&x)?)
    });
    Ok(())
}
