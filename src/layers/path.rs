//! Places in a model, and which of them a span has.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use parking_lot::Mutex;

use crate::error::Phase;

/// Paths are never forgotten, so there are at most this many; what lies deeper then counts as its parent.
const MOST: usize = 1 << 16;

/// A span of one subscriber: its layer's number, and its own.
pub(super) type SpanKey = (u32, u64);

/// A span's name, and its number among those of the same name and parent. The first part of a path is the number of a `LayerMemory`, without
/// a name.
type Part = (&'static str, u32);

/// One `LayerMemory`, and the spans that were entered within it, as a number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct PathId(u32);

/// Where a thread is. Spans in a phase belong to it, whichever spans are around it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) phase: Option<Phase>,
    pub(super) spans: PathId,
}

#[derive(Default)]
struct Tree {
    /// Each path's parent and last part; the path with number n is at n − 1.
    paths: Vec<(PathId, Part)>,
    numbers: HashMap<(PathId, Part), PathId>,
}

static TREE: LazyLock<Mutex<Tree>> = LazyLock::new(Mutex::default);

impl PathId {
    /// Outside of all spans of the `LayerMemory` with this number.
    pub(super) fn root(memory: u64) -> Self {
        Self::default().child(("", memory as u32))
    }

    /// Its number, for those who know nothing of paths.
    pub(super) fn number(self) -> u64 {
        self.0.into()
    }

    /// The path of this number.
    pub(super) fn numbered(number: u64) -> Self {
        u32::try_from(number).map_or(Self::default(), Self)
    }

    /// The path with one more part.
    pub(super) fn child(self, part: Part) -> Self {
        let mut tree = TREE.lock();
        if let Some(known) = tree.numbers.get(&(self, part)) {
            return *known;
        }
        if tree.paths.len() >= MOST {
            return self;
        }
        tree.paths.push((self, part));
        let id = Self(tree.paths.len() as u32);
        tree.numbers.insert((self, part), id);
        id
    }

    /// The same spans within another root.
    pub(super) fn within(self, root: Self) -> Self {
        let spans = TREE.lock().parts(self, |_, part| part);
        spans.into_iter().fold(root, Self::child)
    }

    /// The names of its spans, the outermost first. A span's number is shown if there are several of its name in one parent.
    pub(super) fn names(self) -> Vec<String> {
        let tree = TREE.lock();
        tree.parts(self, |parent, (name, number)| {
            match number > 0 || tree.numbers.contains_key(&(parent, (name, 1))) {
                true => format!("{name}.{number}"),
                false => name.to_owned(),
            }
        })
    }
}

impl Tree {
    /// What `of` makes of each span of a path and its parent, the outermost first.
    fn parts<T>(&self, id: PathId, of: impl Fn(PathId, Part) -> T) -> Vec<T> {
        let entry = |id: &PathId| self.paths.get((id.0 as usize).checked_sub(1)?).copied();
        let upwards = std::iter::successors(entry(&id), |(parent, _)| entry(parent));
        let mut parts: Vec<_> = upwards.map(|(parent, part)| of(parent, part)).collect();
        // The last is the `LayerMemory`.
        parts.pop();
        parts.reverse();
        parts
    }
}

/// The paths of spans. Models create their spans once and enter them in each forward pass, so a span keeps its number while it lives.
/// Of those that are created anew each time, the first of a name within its parent is number 0 each time.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// The paths of each living span, by parent.
    spans: HashMap<SpanKey, Vec<(PathId, PathId)>>,
    taken: HashSet<PathId>,
}

impl Claims {
    /// The path of a span within `parent`. If it was not entered there before, it gets the first number from `from` on that no other living
    /// span has, which is returned too.
    pub(super) fn claim(
        &mut self,
        span: SpanKey,
        parent: PathId,
        name: &'static str,
        from: u32,
    ) -> (PathId, Option<u32>) {
        let paths = self.spans.entry(span).or_default();
        if let Some((_, path)) = paths.iter().find(|(known, _)| *known == parent) {
            return (*path, None);
        }
        let mut number = from;
        let path = loop {
            let path = parent.child((name, number));
            if path == parent || self.taken.insert(path) {
                break path;
            }
            number = number.saturating_add(1);
        };
        paths.push((parent, path));
        (path, Some(number))
    }

    /// Forgets a span that has ended.
    pub(super) fn close(&mut self, span: SpanKey) {
        for (_, path) in self.spans.remove(&span).unwrap_or_default() {
            self.taken.remove(&path);
        }
    }
}
