//! What an engine reports to observers and to `tracing`.

use std::time::Instant;

use super::engine::{Engine, Position};
use super::event::Event;
use super::measured::Measured;
use super::observer::EventKind;
use super::plan::Reason;
use super::processed::Processed;
use crate::error::{Error, Result};

impl Engine {
    /// Runs the work of a batch, and reports it from its beginning to its end. An update apart from its batches has 0 samples
    /// and the number of the last batch.
    pub(crate) fn batch<T, R>(
        &mut self,
        samples: usize,
        work: impl FnOnce(&mut Self) -> Result<(Processed<T>, R)>,
    ) -> Result<(Processed<T>, R)> {
        let is_apart = samples == 0;
        self.batches = self.batches.saturating_sub(u64::from(is_apart));
        let memory = self.memory.clone();
        let measured = Measured::begin(memory.as_ref());
        if !self.observers.is_empty() {
            let memory = measured.reading();
            let began = EventKind::BatchBegan { samples, memory };
            self.observers.notify(self.batches, None, began);
        }
        let began = Instant::now();
        let mut done = work(self);
        if let Ok((processed, _)) = &mut done {
            processed.peak = measured.peak();
        }
        match &done {
            Ok((processed, _)) => self.notify(|| EventKind::BatchEnded {
                began,
                elapsed: began.elapsed(),
                sizes: &processed.sizes,
                retries: processed.retries,
                recomputed: processed.recomputed,
                memory: measured.reading(),
                updated: processed.updated,
            }),
            Err(error) => {
                // An exhaustion in a micro-batch has been reported already.
                if let Error::ResourceExhausted(exhausted) = error
                    && exhausted.micro_batch.is_none()
                {
                    self.notify(|| EventKind::Exhausted(exhausted));
                }
                self.notify(|| EventKind::BatchFailed(error));
            }
        }
        self.batches += u64::from(is_apart || done.is_ok());
        done
    }

    /// Reports an event, if anybody observes, with the policy's plan. Both take time to compute.
    pub(super) fn notify<'a>(&self, kind: impl FnOnce() -> EventKind<'a>) {
        if !self.observers.is_empty() {
            self.observers
                .notify(self.batches, self.policy.plan(), kind());
        }
    }

    pub(crate) fn happened(&self, event: Event, events: &mut Vec<Event>) {
        self.notify(|| EventKind::Happened(&event));
        events.push(event);
    }

    /// Lets the policy learn something, and reports whether that changes its size. It is asked about the same number of samples
    /// before and after, so that the smaller end of a batch is not a change.
    pub(super) fn note_change(
        &mut self,
        at: &Position,
        events: &mut Vec<Event>,
        learn: impl FnOnce(&mut Self),
    ) {
        let from = self.size(at);
        learn(self);
        let to = self.size(at);
        if from == to {
            return;
        }
        let event = match self.policy.plan().map(|plan| plan.reason) {
            Some(Reason::Speed | Reason::Timing) => Event::Paced { from, to },
            _ if from < to => Event::Grown { from, to },
            _ => Event::Shrunk { from, to },
        };
        tracing::info!(step = self.batches, "{event}");
        self.happened(event, events);
    }
}
