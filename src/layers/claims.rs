//! Which path a span has.

use std::collections::{HashMap, HashSet};

use super::path::{Part, PathId};

/// A span of one subscriber: its layer's number, and its own.
pub(super) type SpanKey = (u32, u64);

/// The paths of spans. Models create their spans once and enter them in each forward pass, so a span keeps its number while it lives.
/// Of those that are created anew each time, the first of a name within its parent is number 0 each time.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// The paths of each living span, by parent.
    spans: HashMap<SpanKey, Vec<(PathId, PathId)>>,
    taken: HashSet<PathId>,
}

impl Claims {
    /// The path of a span that was entered within `parent` before.
    pub(super) fn known(&self, span: SpanKey, parent: PathId) -> Option<PathId> {
        let paths = self.spans.get(&span)?;
        let known = paths.iter().find(|(known, _)| *known == parent);
        known.map(|(_, path)| *path)
    }

    /// Gives a span the first number from `from` on that no other living span has, and returns its path with the number.
    pub(super) fn claim(
        &mut self,
        span: SpanKey,
        parent: PathId,
        name: &'static str,
        from: u32,
    ) -> (PathId, u32) {
        let mut number = from;
        let path = loop {
            let path = parent.child(Part::Span(name, number));
            if path == parent || self.taken.insert(path) {
                break path;
            }
            number = number.saturating_add(1);
        };
        self.spans.entry(span).or_default().push((parent, path));
        (path, number)
    }

    /// Forgets a span that has ended.
    pub(super) fn close(&mut self, span: SpanKey) {
        for (_, path) in self.spans.remove(&span).unwrap_or_default() {
            self.taken.remove(&path);
        }
    }
}
