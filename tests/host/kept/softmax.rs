use candle_core::Result;
use candle_headroom::nn;

use super::{assert_kept, var};
use crate::support::alone;

#[test]
fn softmax_keeps_its_output() -> Result<()> {
    let _alone = alone();
    let (xs, bytes) = var(&[4, 1024, 256])?;
    assert_kept("softmax_last_dim", bytes, || nn::ops::softmax_last_dim(&xs));
    Ok(())
}
