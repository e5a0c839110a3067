use candle_core::{Module, Result};
use candle_headroom::nn::{Conv1d, ConvTranspose1d};
use candle_nn::{Conv1dConfig, ConvTranspose1dConfig};

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
