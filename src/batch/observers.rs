//! Calls observers. Without any, nothing is measured for them.

use std::sync::Arc;
use std::time::Instant;

use super::observer::{Observer, Task, TrainingEvent};
use super::outcome::Outcome;
use super::plan::Plan;
use super::policy::BatchPolicy;
use crate::error::{Error, MemoryReading, Phase};
use crate::memory::{DeviceMemory, PeakScope};

/// The observers of one task.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observers {
    list: Vec<Arc<dyn Observer>>,
    pub(crate) task: Task,
}

impl Observers {
    /// Returns the same observers for another task.
    pub(crate) fn of(&self, task: Task) -> Self {
        let list = self.list.clone();
        Self { list, task }
    }

    pub(crate) fn add(&mut self, observer: impl Observer + 'static) {
        self.list.push(Arc::new(observer));
    }

    pub(crate) fn notify(&self, event: &TrainingEvent<'_>) {
        for observer in &self.list {
            observer.observe(event);
        }
    }

    fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the policy's plan if anybody observes: computing it takes time.
    pub(crate) fn plan(&self, policy: &dyn BatchPolicy) -> Option<Plan> {
        match self.is_empty() {
            true => None,
            false => policy.plan(),
        }
    }

    /// Runs one phase and reports it; its peak is that of `memory`'s scope.
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
        self.notify(&TrainingEvent::PhaseBegan { task, step, phase });
        let began = Instant::now();
        let result = work();
        let elapsed = began.elapsed();
        let memory = memory.map(|(memory, scope)| MemoryReading {
            peak: scope.peak(),
            ..memory.reading()
        });
        self.notify(&TrainingEvent::PhaseEnded {
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

/// A batch in progress: creating it reports the start, and its owner reports the end.
#[derive(Debug)]
pub(crate) struct Watch {
    step: u64,
    began: Instant,
    scope: Option<PeakScope>,
}

impl Watch {
    pub(crate) fn begin(
        observers: &Observers,
        memory: Option<&DeviceMemory>,
        step: u64,
        samples: usize,
    ) -> Self {
        if !observers.is_empty() {
            observers.notify(&TrainingEvent::BatchBegan {
                task: observers.task,
                step,
                samples,
                memory: memory.map(DeviceMemory::reading).unwrap_or_default(),
            });
        }
        Self {
            step,
            began: Instant::now(),
            scope: memory.map(DeviceMemory::peak_scope),
        }
    }

    /// Returns the highest use since the start, in bytes.
    pub(crate) fn peak(&self) -> Option<u64> {
        self.scope.as_ref().and_then(PeakScope::peak)
    }

    pub(crate) fn ended(
        &self,
        observers: &Observers,
        memory: Option<&DeviceMemory>,
        outcome: &Outcome,
        plan: Option<Plan>,
        updated: Option<bool>,
    ) {
        if observers.is_empty() {
            return;
        }
        observers.notify(&TrainingEvent::BatchEnded {
            task: observers.task,
            step: self.step,
            began: self.began,
            elapsed: self.began.elapsed(),
            sizes: &outcome.sizes,
            retries: outcome.retries,
            recomputed: outcome.recomputed,
            peak: self.peak(),
            memory: memory.map(DeviceMemory::reading).unwrap_or_default(),
            updated,
            plan,
        });
    }

    pub(crate) fn failed(&self, observers: &Observers, error: &Error, plan: Option<Plan>) {
        let (task, step, began) = (observers.task, self.step, self.began);
        // The engine has reported an exhaustion within a micro-batch already.
        if let Error::ResourceExhausted(exhausted) = error
            && exhausted.micro_batch.is_none()
        {
            observers.notify(&TrainingEvent::Exhausted {
                task,
                step,
                exhausted,
                plan,
            });
        }
        observers.notify(&TrainingEvent::BatchFailed {
            task,
            step,
            began,
            error,
            plan,
        });
    }
}
