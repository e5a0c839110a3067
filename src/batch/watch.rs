//! Telling observers, at no cost where there are none.

use std::sync::Arc;
use std::time::Instant;

use super::{BatchPolicy, Moment, Observer, Outcome, Plan, Task};
use crate::error::{Error, MemoryReading, Phase};
use crate::memory::{DeviceMemory, PeakScope};

/// Those who are told of one task.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observers {
    list: Vec<Arc<dyn Observer>>,
    pub(crate) task: Task,
}

impl Observers {
    /// The same ones, of another task.
    pub(crate) fn of(&self, task: Task) -> Self {
        let list = self.list.clone();
        Self { list, task }
    }

    pub(crate) fn add(&mut self, observer: impl Observer + 'static) {
        self.list.push(Arc::new(observer));
    }

    pub(crate) fn tell(&self, moment: &Moment<'_>) {
        for observer in &self.list {
            observer.observe(moment);
        }
    }

    fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// What the policy believes, for those who are told: to ask it takes some work.
    pub(crate) fn plan(&self, policy: &dyn BatchPolicy) -> Option<Plan> {
        match self.is_empty() {
            true => None,
            false => policy.plan(),
        }
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
        let task = self.task;
        self.tell(&Moment::PhaseBegan { task, step, phase });
        let began = Instant::now();
        let result = work();
        let elapsed = began.elapsed();
        let memory = memory.map(|(memory, scope)| MemoryReading {
            peak: scope.peak(),
            ..memory.reading()
        });
        self.tell(&Moment::PhaseEnded {
            task,
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
                task: observers.task,
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

    pub(crate) fn ended(
        &self,
        outcome: &Outcome,
        peak: Option<u64>,
        plan: Option<Plan>,
        updated: bool,
    ) {
        if !self.observers.is_empty() {
            self.observers.tell(&Moment::BatchEnded {
                task: self.observers.task,
                step: self.step,
                began: self.began,
                elapsed: self.began.elapsed(),
                sizes: &outcome.sizes,
                retries: outcome.retries,
                recomputed: outcome.recomputed,
                peak,
                memory: self.reading(),
                updated,
                plan,
            });
        }
    }

    /// An exhaustion outside any micro-batch is told here; those within one have been.
    pub(crate) fn failed(&self, error: &Error, plan: Option<Plan>) {
        let (task, step, began) = (self.observers.task, self.step, self.began);
        if let Error::ResourceExhausted(exhausted) = error
            && exhausted.micro_batch.is_none()
        {
            self.observers.tell(&Moment::Exhausted {
                task,
                step,
                exhausted,
                plan,
            });
        }
        (self.observers).tell(&Moment::BatchFailed {
            task,
            step,
            began,
            error,
            plan,
        });
    }
}
