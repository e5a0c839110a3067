use std::fmt::{self, Formatter};

use serde::{Deserialize, Serialize};

/// The loss's slope in one direction, from a gradient and from the loss itself, for a change of length 1 of the Vars that were moved:
/// in the direction of the gradient, if none of the random ones is worse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Slope {
    /// The slope that the gradient claims. In the direction of one Var's gradient, this is the gradient's norm.
    pub claimed: f64,
    /// The slope that was measured; `None` if the loss was not finite at any step.
    pub measured: Option<f64>,
    /// The least error that would have been seen in this direction, in proportion to the slope that one Var's gradient claims; `None`
    /// unless the gradient is right.
    pub within: Option<f64>,
    /// The number of Vars that were moved together: 1, unless the gradient is right.
    pub vars: usize,
}

impl Slope {
    /// Returns the claimed slope divided by the measured one, such as 0.25 for a gradient that is four times too small; `None` if
    /// nothing was measured, or 0.
    pub fn factor(&self) -> Option<f64> {
        let measured = self.measured.filter(|measured| *measured != 0.);
        measured.map(|measured| self.claimed / measured)
    }
}

impl fmt::Display for Slope {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "claimed {:.3e}", self.claimed)?;
        if let Some(measured) = self.measured {
            write!(f, ", measured {measured:.3e}")?;
        }
        match self.within {
            Some(within) if self.vars > 1 => {
                write!(f, ", within {within:.0e}, {} Vars together", self.vars)
            }
            Some(within) => write!(f, ", within {within:.0e}"),
            None => Ok(()),
        }
    }
}
