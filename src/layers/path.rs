//! Places in a model as numbers, so that a thread's current one is read at once.

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

/// One `LayerMemory`, a phase of a step, and the spans that were entered within it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PathId(u32);

/// The last part of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// One `LayerMemory`.
    Root(u64),
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

    /// Its number, for those who know nothing of paths.
    pub(super) fn number(self) -> u64 {
        self.0.into()
    }

    /// The path of this number.
    pub(super) fn numbered(number: u64) -> Self {
        u32::try_from(number).map_or(Self::ROOT, Self)
    }

    /// Its number, to look it up in a list.
    pub(super) fn index(self) -> usize {
        self.0 as usize
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

    /// Its last part; `None` of the root.
    pub(super) fn last(self) -> Option<Part> {
        let tree = TREE.lock();
        let part = tree.upwards(self).next();
        part.map(|(_, part)| part)
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
        // Spans are numbered regardless of the phase.
        let mut bare = Some(Self::ROOT);
        let parts = self.parts().into_iter();
        let tree = TREE.lock();
        let names = parts.filter_map(|part| {
            let known = |part| tree.numbers.get(&(bare?, part)).copied();
            let name = match part {
                Part::Root(_) => None,
                Part::Phase(phase) => return Some(phase.to_string()),
                Part::Span(name, 0) if known(Part::Span(name, 1)).is_none() => {
                    Some(name.to_owned())
                }
                Part::Span(name, number) => Some(format!("{name}.{number}")),
            };
            bare = known(part);
            name
        });
        names.collect()
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
