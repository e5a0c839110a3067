//! Telling observers, at no cost where there are none.

use std::sync::Arc;
use std::time::Instant;

use super::{Moment, Observer, Outcome};
use crate::error::{Error, MemoryReading, Phase};
use crate::memory::{DeviceMemory, PeakScope};

/// Those who are told.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observers(Vec<Arc<dyn Observer>>);

impl Observers {
    pub(crate) fn add(&mut self, observer: impl Observer + 'static) {
        self.0.push(Arc::new(observer));
    }

    pub(crate) fn tell(&self, moment: &Moment<'_>) {
        for observer in &self.0 {
            observer.observe(moment);
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Runs one phase and tells how it went; its peak is that of `memory`'s scope.
    pub(crate) fn phase<T, E>(
        &self,
        step: u64,
        phase: Phase,
        memory: Option<(&DeviceMemory, &PeakScope)>,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        if self.is_empty() {
            return work();
        }
        self.tell(&Moment::PhaseBegan { step, phase });
        let began = Instant::now();
        let result = work();
        let elapsed = began.elapsed();
        let memory = memory.map(|(memory, scope)| MemoryReading {
            peak: scope.peak(),
            ..memory.reading()
        });
        self.tell(&Moment::PhaseEnded {
            step,
            phase,
            began,
            elapsed,
            memory: memory.unwrap_or_default(),
            succeeded: result.is_ok(),
        });
        result
    }
}

/// A batch while it is worked through: its beginning is told when this is made, and its end by whoever made it.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    observers: &'a Observers,
    memory: Option<&'a DeviceMemory>,
    step: u64,
    began: Instant,
}

impl<'a> Watch<'a> {
    pub(crate) fn begin(
        observers: &'a Observers,
        memory: Option<&'a DeviceMemory>,
        step: u64,
        samples: usize,
    ) -> Self {
        let watch = Self {
            observers,
            memory,
            step,
            began: Instant::now(),
        };
        if !observers.is_empty() {
            let memory = watch.reading();
            observers.tell(&Moment::BatchBegan {
                step,
                samples,
                memory,
            });
        }
        watch
    }

    fn reading(&self) -> MemoryReading {
        self.memory.map(DeviceMemory::reading).unwrap_or_default()
    }

    pub(crate) fn ended(&self, outcome: &Outcome, peak: Option<u64>, updated: bool) {
        if !self.observers.is_empty() {
            self.observers.tell(&Moment::BatchEnded {
                step: self.step,
                began: self.began,
                elapsed: self.began.elapsed(),
                sizes: &outcome.sizes,
                retries: outcome.retries,
                recomputed: outcome.recomputed,
                peak,
                memory: self.reading(),
                updated,
            });
        }
    }

    /// An exhaustion outside any micro-batch is told here; those within one have been.
    pub(crate) fn failed(&self, error: &Error) {
        let (step, began) = (self.step, self.began);
        if let Error::ResourceExhausted(exhausted) = error
            && exhausted.micro_batch.is_none()
        {
            self.observers.tell(&Moment::Exhausted { step, exhausted });
        }
        (self.observers).tell(&Moment::BatchFailed { step, began, error });
    }
}
