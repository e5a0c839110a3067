use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::nn::{self, BatchNorm, GroupNorm, LayerNorm, Module, ModuleT, RmsNorm};

use super::{NARROW, assert_kept, var};
use crate::support::alone;

#[test]
fn norms_of_rows_keep_their_output() -> Result<()> {
    let _alone = alone();
    let (xs, bytes) = var(NARROW)?;
    let ((weight, _), (bias, _)) = (var(&[8])?, var(&[8])?);
    assert_kept("rms_norm", bytes, || nn::ops::rms_norm(&xs, &weight, 1e-5));
    assert_kept("rms_norm_slow", bytes, || {
        nn::ops::rms_norm_slow(&xs, &weight, 1e-5)
    });
    assert_kept("layer_norm", bytes, || {
        nn::ops::layer_norm(&xs, &weight, &bias, 1e-5)
    });
    assert_kept("layer_norm_slow", bytes, || {
        nn::ops::layer_norm_slow(&xs, &weight, &bias, 1e-5)
    });
    let without_bias = LayerNorm::new_no_bias(weight.as_tensor().clone(), 1e-5);
    assert_kept("LayerNorm without bias", bytes, || {
        without_bias.forward(&xs)
    });
    // The strided input is copied for the computation only.
    let strided = xs.transpose(0, 1)?;
    let rms = RmsNorm::new(weight.as_tensor().clone(), 1e-5);
    assert_kept("RmsNorm, strided", bytes, || rms.forward(&strided));
    assert_kept("RmsNorm::forward_diff, strided", bytes, || {
        rms.forward_diff(&strided)
    });
    Ok(())
}

#[test]
fn group_norm_keeps_its_output_and_three_numbers_for_each_group() -> Result<()> {
    let _alone = alone();
    let (xs, bytes) = var(&[4096, 64, 2, 2])?;
    let parameter = || Ok::<_, candle_core::Error>(var(&[64])?.0.into_inner());
    let group = GroupNorm::new(parameter()?, parameter()?, 64, 8, 1e-5)?;
    let expected = bytes + 3 * 4096 * 8 * DType::F32.size_in_bytes();
    assert_kept("GroupNorm", expected, || group.forward(&xs));
    let strided = xs.transpose(2, 3)?;
    assert_kept("GroupNorm, strided", expected, || group.forward(&strided));
    Ok(())
}

#[test]
fn batch_norm_keeps_its_output_and_three_numbers_for_each_channel() -> Result<()> {
    let _alone = alone();
    const CHANNELS: usize = 65536;
    let (xs, bytes) = var(&[2, CHANNELS, 4, 2])?;
    let parameter = || Ok::<_, candle_core::Error>(var(&[CHANNELS])?.0.into_inner());
    let running = || Tensor::ones(CHANNELS, DType::F32, &Device::Cpu);
    let (mean, variance, weight, bias) = (running()?, running()?, parameter()?, parameter()?);
    let batch = BatchNorm::new(CHANNELS, mean, variance, weight, bias, 1e-5)?;
    let expected = bytes + 3 * CHANNELS * DType::F32.size_in_bytes();
    assert_kept("BatchNorm", expected, || batch.forward_train(&xs));
    // The variance is the running one, the mean a copy.
    let of_copies = bytes + 2 * CHANNELS * DType::F32.size_in_bytes();
    assert_kept("BatchNorm, evaluation", of_copies, || {
        batch.forward_t(&xs, false)
    });
    let strided = xs.transpose(2, 3)?;
    assert_kept("BatchNorm, strided", expected, || {
        batch.forward_train(&strided)
    });
    Ok(())
}
