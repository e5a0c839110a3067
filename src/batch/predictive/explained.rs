use super::policy::Predictive;
use crate::batch::{Plan, Reason};

impl Predictive {
    /// What is known about samples of the present shape, and why the size is used.
    pub(super) fn explained(&self) -> Plan {
        let shape = &self.shapes.active;
        let slope = shape.model.slope();
        let fits = self.room().and_then(|room| shape.fits(room));
        let most = self.options.most;
        Plan {
            base: shape.model.base(),
            each: slope.map(|slope| (slope * shape.each as f64) as u64),
            room: self.available,
            fits: fits.map(|fits| fits / shape.each),
            using: match self.largest() {
                Some(largest) => Some(largest.min(most)),
                None => (most < usize::MAX).then_some(most),
            },
            reason: self.reason(),
        }
    }

    fn reason(&self) -> Reason {
        let shape = &self.shapes.active;
        let largest = self.largest().unwrap_or(usize::MAX);
        let most = self.options.most;
        match () {
            () if largest >= most && most < usize::MAX => Reason::Allowed,
            () if self.is_cold && self.available.is_some() => Reason::Unmeasured,
            () if shape.is_paced() && shape.pace.is_trying() => Reason::Timing,
            () if shape.is_paced() => Reason::Speed,
            () if shape.is_avoiding() => Reason::Failed,
            () if largest == usize::MAX => Reason::Unbounded,
            () => Reason::Room,
        }
    }
}
