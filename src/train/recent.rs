use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::loss::StepLoss;
use crate::memory::Mark;

/// Losses that are followed at once. A GPU is seldom further behind.
const MOST: usize = 16;

/// The losses of the last updates, for reports that are printed without waiting for the device. Nothing is followed before the first such
/// report, so that others cost nothing.
#[derive(Clone, Default)]
pub(super) struct Recent(Arc<Mutex<Followed>>);

#[derive(Default)]
struct Followed {
    is_on: bool,
    /// The newest loss that has arrived, with its step.
    newest: Option<(u64, f64)>,
    /// Those of later steps, and where the device has computed them.
    queued: VecDeque<(u64, StepLoss, Mark)>,
}

impl Recent {
    /// An update with this loss is queued.
    pub(super) fn note(&self, step: u64, loss: &StepLoss) {
        let mut followed = self.0.lock();
        let Followed { is_on, queued, .. } = &mut *followed;
        let device = loss.device().filter(|_| *is_on);
        if queued.len() >= MOST {
            // The newest that has arrived is enough.
            let arrived = queued.iter().rposition(|(.., mark)| mark.has_passed());
            queued.drain(..arrived.unwrap_or(0));
        }
        if let Some(mark) = device.filter(|_| queued.len() < MOST).and_then(Mark::new) {
            queued.push_back((step, loss.clone(), mark));
        }
    }

    /// Returns the newest loss that has arrived, with its step; of other devices than GPUs this one, which is waited for.
    pub(super) fn newest(&self, step: u64, loss: &StepLoss) -> Option<(u64, f64)> {
        if !loss.device().is_some_and(|device| device.is_cuda()) {
            return Some((step, loss.read().ok()?));
        }
        let mut followed = self.0.lock();
        let Followed {
            is_on,
            newest,
            queued,
        } = &mut *followed;
        *is_on = true;
        let arrived = queued.iter().rposition(|(.., mark)| mark.has_passed());
        let arrived = arrived.and_then(|arrived| queued.drain(..=arrived).next_back());
        let read = arrived.and_then(|(step, loss, mark)| Some((step, loss.read_before(&mark)?)));
        *newest = read.or(*newest);
        *newest
    }
}

impl fmt::Debug for Recent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recent").finish_non_exhaustive()
    }
}
