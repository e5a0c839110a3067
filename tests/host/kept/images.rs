use candle_core::Result;
use candle_headroom::nn::{WithGradients, ops};

use super::{assert_kept, var};
use crate::support::alone;

#[test]
fn pooling_keeps_its_output() -> Result<()> {
    let _alone = alone();
    let (x, bytes) = var(&[4, 32, 64, 64])?;
    assert_kept("max_pool2d", bytes / 4, || ops::max_pool2d(&x, 3, 2, 1));
    assert_kept("avg_pool2d", bytes / 4, || ops::avg_pool2d(&x, 3, 2, 1));
    let adaptive = || ops::adaptive_avg_pool2d(&x, 16);
    // The first matrix product of a thread allocates memory that it keeps.
    adaptive()?;
    assert_kept("adaptive_avg_pool2d", bytes / 16, adaptive);
    Ok(())
}

#[test]
fn resampling_keeps_its_output() -> Result<()> {
    let _alone = alone();
    let (x, bytes) = var(&[4, 32, 32, 32])?;
    assert_kept("upsample_nearest2d", 4 * bytes, || {
        ops::upsample_nearest2d(&x, 64, 64)
    });
    assert_kept("upsample_bilinear2d", 4 * bytes, || {
        ops::upsample_bilinear2d(&x, 64, 64, false)
    });
    let (kernel, _) = var(&[32, 32, 3])?;
    let (x, bytes) = var(&[4, 32, 4096])?;
    assert_kept("conv1d of a tensor", bytes, || {
        x.with_gradients().conv1d(&kernel, 1, 1, 1, 1)
    });
    Ok(())
}
