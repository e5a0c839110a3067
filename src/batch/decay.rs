use super::policy::{BatchPolicy, Failed};
use crate::error::{PolicyError, Result};

/// Multiplies a size that does not fit by a factor, starting with the whole batch, and never grows back: with 0.9 what
/// Accelerate's `find_executable_batch_size` does. Sizes are samples, whatever they cost.
///
/// ```
/// use candle_headroom::batch::{BatchPolicy, Decay, Failed};
/// use candle_headroom::ResourceExhausted;
/// use candle_headroom::error::{Cause, Resource};
///
/// let mut policy = Decay::new(0.9)?;
/// let exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::DeviceFull);
/// policy.failed(&Failed::new(128, &exhausted));
/// assert_eq!(policy.size(128), 115);
/// assert!(Decay::new(1.).is_err());
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decay {
    factor: f64,
    size: usize,
}

impl Decay {
    /// Creates the policy; `factor` lies between 0 and 1, both excluded.
    ///
    /// # Errors
    /// [`PolicyError::Factor`].
    pub fn new(factor: f64) -> Result<Self> {
        match factor > 0. && factor < 1. {
            true => Ok(Self {
                factor,
                size: usize::MAX,
            }),
            false => {
                let factor = factor.to_string();
                Err(PolicyError::Factor { factor }.into())
            }
        }
    }
}

impl BatchPolicy for Decay {
    fn size(&self, remaining: usize) -> usize {
        self.size.min(remaining)
    }

    fn failed(&mut self, failed: &Failed<'_>) {
        self.size = ((failed.size as f64 * self.factor) as usize).max(1);
    }
}
