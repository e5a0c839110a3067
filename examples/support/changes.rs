//! The events of a step as lines, each of which says one thing.

use std::cmp::Ordering;
use std::fmt;

use candle_headroom::batch::Event;
use console::style;

/// A line about what happened in a step.
pub struct Line {
    pub text: String,
    /// Memory ran out, or a limit was exceeded.
    is_failure: bool,
}

/// Describes the events of a step. Changes of the micro-batch size in a row become one line, from the first size to the last, and none if
/// they end where they began. Every other event has a line of its own.
pub fn lines(events: &[Event]) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut change: Option<Change> = None;
    for event in events {
        match event {
            Event::Grown { from, to, .. } | Event::Shrunk { from, to, .. } => {
                let change = change.get_or_insert_with(|| Change::new(*from));
                change.extend(*to, event);
            }
            other => {
                lines.extend(change.take().and_then(Change::line));
                lines.push(Line::new(other));
            }
        }
    }
    lines.extend(change.and_then(Change::line));
    lines
}

/// Changes of the micro-batch size in a row.
struct Change {
    from: usize,
    to: usize,
    /// Reasons of the last growth and of the last decrease.
    grown: String,
    shrunk: String,
}

impl Change {
    fn new(from: usize) -> Self {
        Self {
            from,
            to: from,
            grown: String::new(),
            shrunk: String::new(),
        }
    }

    fn extend(&mut self, to: usize, event: &Event) {
        self.to = to;
        let text = event.to_string();
        let reason = text.split_once(": ").map_or("", |(_, reason)| reason);
        match event {
            Event::Grown { .. } => reason.clone_into(&mut self.grown),
            _ => reason.clone_into(&mut self.shrunk),
        }
    }

    /// The last reason of those that lead in the direction of the whole change.
    fn line(self) -> Option<Line> {
        let (from, to) = (self.from, self.to);
        let reason = match to.cmp(&from) {
            Ordering::Equal => return None,
            Ordering::Greater => self.grown,
            Ordering::Less => self.shrunk,
        };
        Some(Line {
            text: format!("micro-batch {from} → {to}: {reason}"),
            is_failure: false,
        })
    }
}

impl Line {
    fn new(event: &Event) -> Self {
        Self {
            text: event.to_string(),
            is_failure: matches!(
                event,
                Event::Retried { .. }
                    | Event::UpdateRetried { .. }
                    | Event::OverLimit { .. }
                    | Event::Restarted { .. }
            ),
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_failure {
            true => write!(f, "{}", style(&self.text).yellow()),
            false => f.write_str(&self.text),
        }
    }
}
