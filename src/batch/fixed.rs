use super::policy::{BatchPolicy, Failed};
use crate::error::{PolicyError, Result};

/// Uses the same size always, and no smaller one if it does not fit.
///
/// ```
/// use candle_headroom::batch::{BatchPolicy, Fixed};
///
/// let policy = Fixed::new(16)?;
/// assert_eq!((policy.size(100), policy.size(5)), (16, 5));
/// assert!(Fixed::new(0).is_err());
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fixed {
    size: usize,
}

impl Fixed {
    /// Creates the policy for micro-batches of `size` samples.
    ///
    /// # Errors
    /// [`PolicyError::Zero`].
    pub fn new(size: usize) -> Result<Self> {
        match size {
            0 => {
                let what = "the size of a micro-batch";
                Err(PolicyError::Zero { what }.into())
            }
            size => Ok(Self { size }),
        }
    }

    /// Creates the policy that does not cut batches.
    pub fn whole_batch() -> Self {
        Self { size: usize::MAX }
    }
}

impl BatchPolicy for Fixed {
    fn size(&self, remaining: usize) -> usize {
        self.size.min(remaining)
    }

    fn failed(&mut self, _: &Failed<'_>) {}
}
