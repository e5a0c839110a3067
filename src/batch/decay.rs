use super::policy::{BatchPolicy, Failed};
use crate::error::{PolicyError, Result};

/// Takes a part of whatever does not fit, beginning with the whole batch, and never grows back: by nine tenths what
/// Accelerate's `find_executable_batch_size` does.
///
/// ```
/// use candle_headroom::{BatchPolicy, Cause, Decay, Failed, Resource, ResourceExhausted};
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
    /// Takes `factor` of a size that failed: a number above 0 and below 1.
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
