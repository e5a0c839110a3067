use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::nn::{self, BatchNorm, GroupNorm, LayerNorm, Module, ModuleT, RmsNorm};

use super::{assert_kept, var};
use crate::support::alone;

#[test]
fn norms_of_rows_keep_their_output() -> Result<()> {
    let _alone = alone();
    let (xs, bytes) = var(&[4, 1024, 256])?;
    let ((weight, _), (bias, _)) = (var(&[256])?, var(&[256])?);
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
fn norms_of_channels_keep_their_output() -> Result<()> {
    let _alone = alone();
    let (xs, bytes) = var(&[4, 64, 64, 64])?;
    let parameter = || Ok::<_, candle_core::Error>(var(&[64])?.0.into_inner());
    let group = GroupNorm::new(parameter()?, parameter()?, 64, 8, 1e-5)?;
    assert_kept("GroupNorm", bytes, || group.forward(&xs));
    let running = Tensor::ones(64, DType::F32, &Device::Cpu)?;
    let (mean, variance) = (running.clone(), running);
    let batch = BatchNorm::new(64, mean, variance, parameter()?, parameter()?, 1e-5)?;
    assert_kept("BatchNorm", bytes, || batch.forward_train(&xs));
    assert_kept("BatchNorm, evaluation", bytes, || {
        batch.forward_t(&xs, false)
    });
    let strided = xs.transpose(2, 3)?;
    assert_kept("GroupNorm, strided", bytes, || group.forward(&strided));
    assert_kept("BatchNorm, strided", bytes, || {
        batch.forward_train(&strided)
    });
    Ok(())
}
