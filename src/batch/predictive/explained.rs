use super::policy::Predictive;
use super::regime::Regime;
use crate::batch::{MemoryModel, Plan, Reason};

impl Predictive {
    /// What is known about samples of the present shape, and why the size is used.
    pub(super) fn explained(&self) -> Plan {
        let regime = &self.shapes.active;
        let of_sample = |model: &MemoryModel| {
            let slope = model.slope()?;
            Some((slope * regime.each as f64) as u64)
        };
        let fits = self.room().and_then(|room| regime.fits(room));
        let most = self.options.most;
        Plan {
            base: regime.model.base(),
            each: of_sample(&regime.model),
            each_forward: of_sample(&regime.forward),
            room: self.available,
            fits: fits.map(|fits| fits / regime.each),
            using: match self.largest() {
                Some(largest) => Some(largest.min(most)),
                None => (most < usize::MAX).then_some(most),
            },
            reason: self.reason(),
        }
    }

    fn reason(&self) -> Reason {
        let Regime {
            ceiling, pace, cap, ..
        } = &self.shapes.active;
        let largest = self.largest().unwrap_or(usize::MAX);
        let cap = cap.unwrap_or(usize::MAX);
        let most = self.options.most;
        match () {
            () if largest >= most && most < usize::MAX => Reason::Allowed,
            () if self.is_cold && self.available.is_some() => Reason::Unmeasured,
            () if pace.limit(cap) < cap && pace.is_trying() => Reason::Timing,
            () if pace.limit(cap) < cap => Reason::Speed,
            () if ceiling.is_some() => Reason::Failed,
            () if largest == usize::MAX => Reason::Unbounded,
            () => Reason::Room,
        }
    }
}
