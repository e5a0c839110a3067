//! What the calls of each path took.

use std::time::Duration;

use super::path::PathId;

/// The calls of one path.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Calls {
    pub(super) count: u64,
    /// Bytes allocated in it and still held at its end, with those of the spans within it; below 0 if it freed more.
    pub(super) held: i64,
    /// The same without the spans within it.
    pub(super) own: i64,
    /// The highest use in a call, above that at its beginning.
    pub(super) highest: u64,
    pub(super) time: Duration,
    pub(super) own_time: Duration,
}

/// By path.
#[derive(Debug, Clone, Default)]
pub(super) struct Stats {
    calls: Vec<Calls>,
    paths: Vec<PathId>,
}

impl Stats {
    pub(super) fn clear(&mut self) {
        for path in self.paths.drain(..) {
            if let Some(calls) = self.calls.get_mut(path.index()) {
                *calls = Calls::default();
            }
        }
    }

    pub(super) fn add(&mut self, path: PathId, call: Calls) {
        if self.calls.len() <= path.index() {
            self.calls.resize(path.index() + 1, Calls::default());
        }
        let Some(calls) = self.calls.get_mut(path.index()) else {
            return;
        };
        if calls.count == 0 {
            self.paths.push(path);
        }
        calls.count += call.count;
        calls.held += call.held;
        calls.own += call.own;
        calls.highest = calls.highest.max(call.highest);
        calls.time += call.time;
        calls.own_time += call.own_time;
    }

    pub(super) fn of(&self, path: PathId) -> Option<&Calls> {
        self.calls.get(path.index()).filter(|calls| calls.count > 0)
    }

    /// In the order in which the paths' first calls ended.
    pub(super) fn iter(&self) -> impl Iterator<Item = (PathId, &Calls)> {
        let of = |path: &PathId| Some((*path, self.of(*path)?));
        self.paths.iter().filter_map(of)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }
}
