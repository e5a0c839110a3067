use crate::batch::Event;
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

impl Mark {
    pub(super) fn exhausted(at: u64, step: u64, exhausted: &ResourceExhausted) -> Self {
        Self {
            at,
            step,
            kind: MarkKind::Exhausted,
            text: exhausted.to_string(),
            detail: Some(format!("{exhausted:#}")),
        }
    }

    pub(super) fn happened(at: u64, step: u64, event: &Event) -> Self {
        Self {
            at,
            step,
            kind: MarkKind::of(event),
            text: event.to_string(),
            detail: None,
        }
    }

    pub(super) fn failed(at: u64, step: u64, error: &Error) -> Self {
        Self {
            at,
            step,
            kind: MarkKind::Failed,
            text: first_line(&error.to_string()),
            detail: None,
        }
    }
}

/// candle's errors carry a whole backtrace when `RUST_BACKTRACE` is set.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
