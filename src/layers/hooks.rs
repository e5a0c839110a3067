//! What trainers and recomputed regions tell of their work.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use candle_core::Device;

use super::path::PathId;
use super::report::LayerReport;
use super::shared::active;
use super::tracker::Tracker;
use super::unit::Work;
use crate::batch::Task;
use crate::error::{Holding, Phase};
use crate::marks::{self, Mark};

/// The layers of an exhaustion's long form.
const LARGEST: usize = 6;

/// Work that lasts until this is dropped, on the thread that began it.
#[must_use]
pub(crate) struct Guard {
    number: Option<u64>,
    /// Also without a `LayerMemory`.
    _mark: Option<Mark>,
    /// Not to be sent.
    _thread: PhantomData<*const ()>,
}

impl Guard {
    /// Begins the work, if a `LayerMemory` measures.
    fn enter(mark: Option<Mark>, enter: impl FnOnce(&mut Tracker, u64)) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = active().map(|shared| {
            let number = NEXT.fetch_add(1, Relaxed);
            shared.on_this_thread(|tracker| enter(tracker, number));
            number
        });
        Self {
            number,
            _mark: mark,
            _thread: PhantomData,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some((number, shared)) = self.number.zip(active()) {
            shared.on_this_thread(|tracker| tracker.leave_guard(number));
        }
    }
}

/// Begins a micro-batch of so many samples, or an update with 0, on this device: its engine, its task, its step, and what is known to
/// be held.
pub(crate) fn piece(
    device: &Device,
    engine: u64,
    work: (Task, u64, usize),
    held: impl FnOnce() -> Vec<Holding>,
) -> Guard {
    let held = active().map_or_else(Vec::new, |_| held());
    let mark = marks::work(work);
    let work = Some((engine, Work::new(work)));
    Guard::enter(Some(mark), |tracker, number| match tracker.is_on(device) {
        true => tracker.enter_unit(number, work, held),
        false => tracker.enter_elsewhere(number),
    })
}

/// Begins a step of a loop of one's own.
pub(super) fn measured() -> Guard {
    Guard::enter(None, |tracker, number| {
        tracker.enter_unit(number, None, Vec::new())
    })
}

/// Begins a phase.
pub(crate) fn phase(phase: Phase) -> Guard {
    Guard::enter(Some(marks::phase(phase)), |tracker, number| {
        tracker.enter_phase(number, phase);
    })
}

/// Where this thread is, for [`again`].
pub(crate) fn place() -> u64 {
    let place = active().and_then(|shared| shared.on_this_thread(|tracker| tracker.place()));
    place.unwrap_or_default().spans.number()
}

/// Goes back to a place, in the present phase.
pub(crate) fn again(place: u64) -> Guard {
    Guard::enter(None, |tracker, number| {
        tracker.enter_again(number, PathId::numbered(place))
    })
}

/// Goes back to the span that was left last, for more of its work.
pub(crate) fn last() -> Guard {
    Guard::enter(None, Tracker::enter_last)
}

/// The layers that held the most at the highest use of the micro-batch in progress on this thread.
pub(crate) fn largest(device: &Device) -> Vec<Holding> {
    let largest = active().and_then(|shared| {
        shared.on_this_thread(|tracker| {
            if !tracker.is_on(device) {
                return Vec::new();
            }
            tracker.settle();
            LayerReport::of(&tracker.unit).largest(LARGEST)
        })
    });
    largest.unwrap_or_default()
}
