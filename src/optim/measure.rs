use std::iter::Sum;

/// The sum of the squares of some gradients' elements, before any adjustment; from [`Commit::measure`](super::Commit::measure).
///
/// The sum over all ranks, added in the order of ranks so that each gets the same bits, is for
/// [`Commit::commit_measured`](super::Commit::commit_measured).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measure(f64);

impl Measure {
    /// From a number that [`squares`](Self::squares) returned, on another rank for example.
    pub fn new(squares: f64) -> Self {
        Self(squares)
    }

    /// The sum; NaN if one of the elements is not finite.
    pub fn squares(self) -> f64 {
        self.0
    }

    /// Whether all elements are finite. The sum of their squares may be infinite.
    pub fn is_finite(self) -> bool {
        !self.0.is_nan()
    }
}

/// Adds from the first to the last.
impl Sum for Measure {
    fn sum<I: Iterator<Item = Self>>(measures: I) -> Self {
        // The sum of no floats would be -0.
        Self(measures.fold(0., |total, measure| total + measure.0))
    }
}
