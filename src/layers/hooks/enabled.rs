use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use candle_core::Device;

use crate::batch::Task;
use crate::error::{Holding, Phase};
use crate::layers::path::{PathId, current};
use crate::layers::report::LayerReport;
use crate::layers::shared::{are_any, for_each};
use crate::layers::tracker::{Key, Tracker};
use crate::layers::unit::Work;

/// The layers of an exhaustion's long form.
const LARGEST: usize = 6;

/// Work that lasts until this is dropped, on the thread that began it.
#[must_use]
pub(crate) struct Guard(Option<u64>, PhantomData<*const ()>);

impl Guard {
    /// Begins the work in all that live.
    fn enter(mut enter: impl FnMut(&mut Tracker, u64)) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = are_any().then(|| {
            let number = NEXT.fetch_add(1, Relaxed);
            for_each(|shared| {
                shared.on_this_thread(|tracker| enter(tracker, number));
            });
            number
        });
        Self(number, PhantomData)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(number) = self.0 {
            for_each(|shared| {
                shared.on_this_thread(|tracker| tracker.leave_guard(number));
            });
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
    if !are_any() {
        return Guard(None, PhantomData);
    }
    let held = held();
    let work = Some((engine, Work::new(work)));
    Guard::enter(|tracker, number| match tracker.is_on(device) {
        true => tracker.enter_unit(Key::Guard(number), work, held.clone()),
        false => tracker.enter_elsewhere(number),
    })
}

/// Begins a phase.
pub(crate) fn phase(phase: Phase) -> Guard {
    Guard::enter(|tracker, number| tracker.enter_phase(number, phase))
}

/// Where this thread is, for [`again`].
pub(crate) fn place() -> u64 {
    current().number()
}

/// Goes back to a place, in the present phase.
pub(crate) fn again(place: u64) -> Guard {
    Guard::enter(|tracker, number| tracker.enter_place(number, PathId::numbered(place)))
}

/// Goes back to the span that was left last, for more of its work.
pub(crate) fn last() -> Guard {
    Guard::enter(Tracker::enter_last)
}

/// The layers that held the most at the highest use of the micro-batch in progress on this thread.
pub(crate) fn largest(device: &Device) -> Vec<Holding> {
    let mut largest = Vec::new();
    if are_any() {
        for_each(|shared| {
            shared.on_this_thread(|tracker| {
                if tracker.is_on(device) && largest.is_empty() {
                    tracker.settle();
                    largest = LayerReport::of(&tracker.unit).largest(LARGEST);
                }
            });
        });
    }
    largest
}
