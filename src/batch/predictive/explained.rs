use super::Predictive;
use super::regime::Regime;
use crate::batch::{MemoryModel, Plan, Reason};

impl Predictive {
    /// What is believed of samples of the present shape.
    pub(super) fn explained(&self) -> Plan {
        let regime = &self.shapes.active;
        let of_sample = |model: &MemoryModel| {
            let slope = model.slope()?;
            Some((slope * regime.each as f64) as u64)
        };
        Plan {
            base: regime.model.base(),
            each: of_sample(&regime.model),
            each_forward: of_sample(&regime.forward),
            room: self.room,
            fits: self
                .room()
                .and_then(|room| Some(regime.fits(room)? / regime.each)),
            using: match self.largest() {
                Some(largest) => Some(largest.min(self.most)),
                None => (self.most < usize::MAX).then_some(self.most),
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
        match () {
            () if largest >= self.most && self.most < usize::MAX => Reason::Allowed,
            () if self.is_cold && self.room.is_some() => Reason::Unmeasured,
            () if pace.limit(cap) < cap && pace.is_trying() => Reason::Timing,
            () if pace.limit(cap) < cap => Reason::Speed,
            () if ceiling.is_some() => Reason::Failed,
            () if largest == usize::MAX => Reason::Unbounded,
            () => Reason::Room,
        }
    }
}
