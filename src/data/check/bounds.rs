use std::fmt;
use std::ops::{Bound, RangeBounds};

/// The range that values must be in.
#[derive(Debug, Clone, Copy)]
pub struct Bounds(Bound<i64>, Bound<i64>);

impl Bounds {
    pub fn new(range: impl RangeBounds<i64>) -> Self {
        Self(range.start_bound().cloned(), range.end_bound().cloned())
    }

    pub fn integers(&self) -> (Bound<i64>, Bound<i64>) {
        (self.0, self.1)
    }

    pub fn floats(&self) -> (Bound<f64>, Bound<f64>) {
        let float = |bound: Bound<i64>| bound.map(|bound| bound as f64);
        (float(self.0), float(self.1))
    }

    /// The smallest integer in the range.
    pub fn first(&self) -> Option<i64> {
        match self.0 {
            Bound::Included(first) => Some(first),
            Bound::Excluded(before) => before.checked_add(1),
            Bound::Unbounded => None,
        }
    }

    /// The smallest integer above the range.
    pub fn end(&self) -> Option<i64> {
        match self.1 {
            Bound::Included(last) => last.checked_add(1),
            Bound::Excluded(end) => Some(end),
            Bound::Unbounded => None,
        }
    }
}

/// As Rust writes ranges.
impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Bound::Included(first) => write!(f, "{first}")?,
            Bound::Excluded(before) => write!(f, "(above {before})")?,
            Bound::Unbounded => {}
        }
        match self.1 {
            Bound::Included(last) => write!(f, "..={last}"),
            Bound::Excluded(end) => write!(f, "..{end}"),
            Bound::Unbounded => write!(f, ".."),
        }
    }
}
