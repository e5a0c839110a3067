use candle_core::Result;
use candle_headroom::nn;

use super::{NARROW, assert_kept, var};
use crate::support::alone;

#[test]
fn softmax_keeps_its_output() -> Result<()> {
    let _alone = alone();
    let (xs, bytes) = var(NARROW)?;
    assert_kept("softmax_last_dim", bytes, || nn::ops::softmax_last_dim(&xs));
    Ok(())
}
