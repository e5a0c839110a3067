//! Where a thread was, as the frames of a stack.

use std::collections::HashMap;
use std::io::{Result, Write};

use super::event::Event;
use super::pickle::{Memo, Pickle};
use crate::layers::path::{Part, PathId};

/// Frames that were written, each list once.
#[derive(Default)]
pub(super) struct Frames {
    written: HashMap<(PathId, u16), Memo>,
    categories: HashMap<PathId, Option<String>>,
}

impl Frames {
    /// Writes the frames of an event, the innermost first: spans, phases, and the thread.
    pub(super) fn write<W: Write>(&mut self, pickle: &mut Pickle<W>, event: &Event) -> Result<()> {
        let place = (event.path, event.thread);
        if let Some(memo) = self.written.get(&place) {
            return pickle.again(*memo);
        }
        let kinds = event.path.parts().into_iter();
        let kinds = kinds.filter_map(|part| match part {
            Part::Root(_) => None, // it has no name
            Part::Phase(_) => Some("phase"),
            Part::Span(..) => Some("span"),
        });
        let mut frames = vec![("process", format!("thread {}", event.thread))];
        frames.extend(kinds.zip(event.path.names()));
        pickle.list(frames.iter().rev(), |pickle, (kind, name)| {
            frame(pickle, kind, name)
        })?;
        let memo = pickle.memoize()?;
        self.written.insert(place, memo);
        Ok(())
    }

    /// The innermost phase of a path.
    pub(super) fn category(&mut self, path: PathId) -> Option<&str> {
        let category = self.categories.entry(path).or_insert_with(|| {
            let parts = path.parts().into_iter().rev();
            let mut phases = parts.filter_map(|part| match part {
                Part::Phase(phase) => Some(phase.to_string()),
                Part::Root(_) | Part::Span(..) => None,
            });
            phases.next()
        });
        category.as_deref()
    }
}

/// Writes one frame. A viewer shows it as `kind:0:name`.
pub(super) fn frame<W: Write>(pickle: &mut Pickle<W>, kind: &str, name: &str) -> Result<()> {
    pickle.dict(|frame| {
        frame.text_at("filename", kind)?;
        frame.number_at("line", 0)?;
        frame.text_at("name", name)
    })
}
