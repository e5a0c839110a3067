use candle_core::Result;
use candle_headroom::nn::rotary_emb::{rope, rope_i, rope_i_slow, rope_slow, rope_thd};

use super::{assert_kept, var};
use crate::support::alone;

#[test]
fn rotary_embeddings_keep_their_output() -> Result<()> {
    let _alone = alone();
    let (xs, bytes) = var(&[2, 8, 16384, 8])?;
    // Longer than the sequence, and differentiated: the part in use is a view.
    let ((cos, _), (sin, _)) = (var(&[32768, 4])?, var(&[32768, 4])?);
    assert_kept("rope", bytes, || rope(&xs, &cos, &sin));
    assert_kept("rope_i", bytes, || rope_i(&xs, &cos, &sin));
    assert_kept("rope_slow", bytes, || rope_slow(&xs, &cos, &sin));
    assert_kept("rope_i_slow", bytes, || rope_i_slow(&xs, &cos, &sin));
    let heads_last = xs.transpose(1, 2)?;
    assert_kept("rope_thd, strided", bytes, || {
        rope_thd(&heads_last, &cos, &sin)
    });
    Ok(())
}
