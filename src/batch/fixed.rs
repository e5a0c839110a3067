use super::policy::{BatchPolicy, Failed, at_least_one};
use crate::error::Result;

/// Always uses the same size, and none smaller if it does not fit.
///
/// ```
/// use candle_headroom::batch::{BatchPolicy, Fixed};
///
/// let policy = Fixed::new(16)?;
/// assert_eq!((policy.size(100), policy.size(5)), (16, 5));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fixed(usize);

impl Fixed {
    /// Creates the policy for micro-batches of `size` samples.
    ///
    /// # Errors
    /// If `size` is 0 ([`is_policy`](crate::Error::is_policy)).
    pub fn new(size: usize) -> Result<Self> {
        at_least_one("the size of a micro-batch", size)?;
        Ok(Self(size))
    }

    /// Creates the policy that does not cut batches.
    pub fn whole_batch() -> Self {
        Self(usize::MAX)
    }
}

impl BatchPolicy for Fixed {
    fn size(&self, remaining: usize) -> usize {
        self.0.min(remaining)
    }

    fn failed(&mut self, _: &Failed<'_>) {}
}
