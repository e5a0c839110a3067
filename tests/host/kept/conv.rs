use candle_core::{Module, Result};
use candle_headroom::nn::{Conv1d, Conv2d, ConvTranspose1d};
use candle_nn::{Conv1dConfig, Conv2dConfig, ConvTranspose1dConfig};

use super::{assert_kept, var};
use crate::support::alone;

#[test]
fn convolutions_over_one_dimension_keep_their_output() -> Result<()> {
    let _alone = alone();
    let (x, bytes) = var(&[4, 128, 1024])?;
    let ((weight, _), (bias, _)) = (var(&[128, 128, 3])?, var(&[128])?);
    let (weight, bias) = (weight.as_tensor().clone(), bias.as_tensor().clone());
    let config = Conv1dConfig {
        padding: 1,
        ..Default::default()
    };
    let layer = Conv1d::new(weight.clone(), Some(bias.clone()), config);
    assert_kept("conv1d", bytes, || layer.forward(&x));
    let config = ConvTranspose1dConfig {
        padding: 1,
        ..Default::default()
    };
    let layer = ConvTranspose1d::new(weight, Some(bias), config);
    assert_kept("conv_transpose1d", bytes, || layer.forward(&x));
    Ok(())
}

#[test]
fn convolutions_over_two_dimensions_keep_their_output() -> Result<()> {
    let _alone = alone();
    let (x, bytes) = var(&[4, 32, 32, 64])?;
    let ((weight, _), (bias, _)) = (var(&[32, 16, 3, 3])?, var(&[32])?);
    let config = Conv2dConfig {
        padding: 1,
        groups: 2,
        ..Default::default()
    };
    for bias in [None, Some(bias.as_tensor().clone())] {
        let layer = Conv2d::new(weight.as_tensor().clone(), bias, config);
        // A thread's first product of a size leaves a buffer with that thread.
        layer.forward(&x)?;
        assert_kept("conv2d", bytes, || layer.forward(&x));
    }
    Ok(())
}
