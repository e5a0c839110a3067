use candle_core::DType;

/// One unit in the last place of 1, for a loss that is computed in a type: ε.
///
/// A central difference with the step h has two errors. Rounding of the loss by ε gives ε/h, and what the difference leaves out gives
/// h², both in proportion to the slope, where the loss and the Var's scale are 1. Their sum is least, about ε^⅔, at h = ε^⅓.
pub(super) fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F32 => f64::from(f32::EPSILON),
        DType::F16 => 2f64.powi(-10),
        _ => 2f64.powi(-7),
    }
}

/// The largest difference of slopes that counts as none, in proportion to the slope: in f64 and f32 far above the least error, because
/// a formula that is wrong is wrong by more; in f16 and bf16 eight units in the last place, because the gradient itself is a sum of
/// rounded numbers.
pub(super) fn tolerance(epsilon: f64) -> f64 {
    let formula: f64 = if epsilon == f64::EPSILON { 1e-5 } else { 1e-3 };
    formula.max(8. * epsilon)
}
