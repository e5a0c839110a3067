use crate::batch::{Event, Task};
use crate::error::{Error, ResourceExhausted};
use crate::incident::IncidentKind;
use crate::output::first_line;

/// An event at one time.
#[derive(Debug, Clone)]
pub(super) struct Mark {
    /// In nanoseconds.
    pub(super) at: u64,
    /// Counted from 1.
    pub(super) step: u64,
    pub(super) kind: IncidentKind,
    pub(super) text: String,
    /// The long form of an exhaustion.
    pub(super) detail: Option<String>,
}

/// When and where an event happened.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) at: u64,
    pub(super) step: u64,
    pub(super) task: Task,
}

impl Mark {
    pub(super) fn exhausted(place: Place, exhausted: &ResourceExhausted) -> Self {
        let detail = Some(format!("{exhausted:#}"));
        let kind = IncidentKind::Exhausted;
        Self::new(place, kind, &exhausted.to_string(), detail)
    }

    pub(super) fn happened(place: Place, event: &Event) -> Self {
        let kind = match IncidentKind::from(event) {
            // Belongs to the mark of the exhaustion.
            IncidentKind::Retried => IncidentKind::Exhausted,
            kind => kind,
        };
        Self::new(place, kind, &event.to_string(), None)
    }

    pub(super) fn failed(place: Place, error: &Error) -> Self {
        // With `RUST_BACKTRACE` set, candle's errors contain a whole backtrace.
        let text = error.to_string();
        Self::new(place, IncidentKind::Failed, first_line(&text), None)
    }

    fn new(place: Place, kind: IncidentKind, text: &str, detail: Option<String>) -> Self {
        Self {
            at: place.at,
            step: place.step,
            kind,
            text: match place.task {
                Task::Evaluation => format!("evaluation: {text}"),
                _ => text.to_owned(),
            },
            detail,
        }
    }
}
