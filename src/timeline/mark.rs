use crate::batch::{Event, Task};
use crate::error::{Error, ResourceExhausted};

/// Something that happened at one moment.
#[derive(Debug, Clone)]
pub(super) struct Mark {
    pub(super) at: u64,
    /// Counted from 1.
    pub(super) step: u64,
    pub(super) kind: MarkKind,
    pub(super) text: String,
    /// The long form, where there is one.
    pub(super) detail: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MarkKind {
    Exhausted,
    Failed,
    Grown,
    Shrunk,
    Paced,
    Restarted,
    OverLimit,
}

impl MarkKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::Failed => "failed",
            Self::Grown => "grown",
            Self::Shrunk => "shrunk",
            Self::Paced => "paced",
            Self::Restarted => "restarted",
            Self::OverLimit => "over limit",
        }
    }

    fn of(event: &Event) -> Self {
        match event {
            Event::Grown { .. } => Self::Grown,
            Event::Shrunk { .. } => Self::Shrunk,
            Event::Paced { .. } => Self::Paced,
            Event::Retried { .. } => Self::Exhausted,
            Event::OverLimit { .. } => Self::OverLimit,
            Event::Restarted { .. } => Self::Restarted,
        }
    }
}

/// When, and in what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) at: u64,
    /// Counted from 1.
    pub(super) step: u64,
    pub(super) task: Task,
}

impl Mark {
    pub(super) fn exhausted(place: Place, exhausted: &ResourceExhausted) -> Self {
        let detail = Some(format!("{exhausted:#}"));
        Self::new(place, MarkKind::Exhausted, &exhausted.to_string(), detail)
    }

    pub(super) fn happened(place: Place, event: &Event) -> Self {
        Self::new(place, MarkKind::of(event), &event.to_string(), None)
    }

    pub(super) fn failed(place: Place, error: &Error) -> Self {
        let text = error.to_string();
        Self::new(place, MarkKind::Failed, first_line(&text), None)
    }

    fn new(place: Place, kind: MarkKind, text: &str, detail: Option<String>) -> Self {
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

/// candle's errors carry a whole backtrace when `RUST_BACKTRACE` is set.
fn first_line(text: &str) -> &str {
    crate::output::first_line(text)
}
