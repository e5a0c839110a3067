//! Calls observers. Without any, nothing is measured for them.

use std::sync::Arc;
use std::time::Instant;

use super::measured::Measured;
use super::observer::{EventKind, Observer, Task, TrainingEvent};
use super::plan::Plan;
use crate::error::Phase;

/// The observers of one task.
#[derive(Debug)]
pub(crate) struct Observers {
    list: Vec<Arc<dyn Observer>>,
    task: Task,
}

impl Observers {
    pub(super) fn new(task: Task) -> Self {
        let list = Vec::new();
        Self { list, task }
    }

    pub(crate) fn add(&mut self, observer: Arc<dyn Observer>) {
        self.list.push(observer);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn notify(&self, step: u64, plan: Option<Plan>, kind: EventKind<'_>) {
        let task = self.task;
        let event = TrainingEvent {
            task,
            step,
            plan,
            kind,
        };
        for observer in &self.list {
            observer.observe(&event);
        }
    }

    /// Runs one phase and reports it.
    pub(crate) fn phase<T, E>(
        &self,
        step: u64,
        phase: Phase,
        memory: &Measured<'_>,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        if self.is_empty() {
            return work();
        }
        self.notify(step, None, EventKind::PhaseBegan(phase));
        let began = Instant::now();
        let result = work();
        let ended = EventKind::PhaseEnded {
            phase,
            began,
            elapsed: began.elapsed(),
            memory: memory.reading(),
            succeeded: result.is_ok(),
        };
        self.notify(step, None, ended);
        result
    }
}
