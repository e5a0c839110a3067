//! Places in a model as numbers, so that a thread's current one can be read anywhere, also inside an allocator.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::LazyLock;

use parking_lot::Mutex;

use crate::error::Phase;

/// Paths are never forgotten, so there are at most this many; what lies deeper then counts as its parent.
const MOST: usize = 1 << 16;

thread_local! {
    /// The number of the current path. It has no destructor and starts without code.
    static CURRENT: Cell<u32> = const { Cell::new(0) };
}

/// A phase of a step, then the spans that were entered within it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PathId(u32);

/// The last part of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Part {
    Phase(Phase),
    /// A span's name, and its number among those of the same name and parent.
    Span(&'static str, u32),
}

#[derive(Default)]
struct Tree {
    /// Each path's parent and last part; the path with number n is at n − 1.
    paths: Vec<(PathId, Part)>,
    numbers: HashMap<(PathId, Part), PathId>,
}

static TREE: LazyLock<Mutex<Tree>> = LazyLock::new(Mutex::default);

impl PathId {
    /// Outside of all phases and spans.
    pub(crate) const ROOT: Self = Self(0);

    /// Its number, from which [`numbered`](Self::numbered) makes it again.
    pub(super) fn number(self) -> u32 {
        self.0
    }

    /// The path with this number.
    pub(super) fn numbered(number: u32) -> Self {
        Self(number)
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

    /// Its parts, the outermost first.
    pub(super) fn parts(self) -> Vec<Part> {
        let tree = TREE.lock();
        let mut parts: Vec<_> = tree.upwards(self).map(|(_, part)| part).collect();
        parts.reverse();
        parts
    }

    /// The names of its parts, the outermost first: a phase as in an error's text, then spans. A span's number is shown if there are
    /// several of its name in one parent. It allocates and takes a lock.
    pub(crate) fn names(self) -> Vec<String> {
        let tree = TREE.lock();
        let names = tree.upwards(self).map(|(parent, part)| match part {
            Part::Phase(phase) => phase.to_string(),
            Part::Span(name, 0) if !tree.numbers.contains_key(&(parent, Part::Span(name, 1))) => {
                name.to_owned()
            }
            Part::Span(name, number) => format!("{name}.{number}"),
        });
        let mut names: Vec<_> = names.collect();
        names.reverse();
        names
    }
}

impl Tree {
    /// The parent and the last part of a path, then of its parent, and so on.
    fn upwards(&self, id: PathId) -> impl Iterator<Item = (PathId, Part)> {
        let entry = |id: PathId| {
            let place = (id.0 as usize).checked_sub(1)?;
            self.paths.get(place).copied()
        };
        std::iter::successors(entry(id), move |(parent, _)| entry(*parent))
    }
}

/// Where this thread is. It neither allocates nor takes a lock.
#[inline]
pub(crate) fn current() -> PathId {
    PathId(CURRENT.try_with(Cell::get).unwrap_or(0))
}

/// Sets where this thread is.
#[inline]
pub(super) fn set_current(id: PathId) {
    // It cannot fail without a destructor.
    let _ = CURRENT.try_with(|current| current.set(id.0));
}
