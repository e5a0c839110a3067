use candle_core::Tensor;

use super::options::Rule;

/// What turns some rows of logits into losses.
#[derive(Debug)]
pub struct Arguments<'a> {
    pub rule: Rule,
    /// i64, contiguous, one for each row.
    pub targets: &'a Tensor,
    /// The target of a row that is ignored.
    pub none: i64,
    /// In the type of the logits, contiguous, one for each row.
    pub weights: Option<&'a Tensor>,
    /// In the type of the logits, contiguous, one for each class.
    pub bias: Option<&'a Tensor>,
    /// Whether gradients are asked for.
    pub differentiates: bool,
}
