use candle_core::cuda_backend::kernels::AFFINE;

use crate::environment::probe::ptx::Kernels;

/// One of candle's kernels and one of this crate's, since the two crates may have been compiled separately.
pub(crate) fn kernels() -> Vec<Kernels> {
    const SURVEY: &str = include_str!(concat!(env!("OUT_DIR"), "/survey.ptx"));
    vec![
        Kernels::read("candle's kernels", AFFINE.ptx(), true),
        Kernels::read("this crate's kernels", SURVEY, false),
    ]
}
