//! A history in the form of `torch.cuda.memory._snapshot()`.

use std::io::{Result, Write};
use std::iter;

use bytesize::ByteSize;

use super::event::Event;
use super::frames::Frames;
use super::history::History;
use super::pickle::Pickle;
use super::segments;
use crate::memory::HostEvent;

/// The category of what belongs to no phase, by the viewer's name for it. A version of the viewer fails on a file that has
/// categories but not this one.
const UNKNOWN: &str = "unknown";

struct Document<'a> {
    history: &'a History,
    frames: Frames,
    /// Whether an event belongs to a phase. Without categories, the viewer gives each block a colour of its own.
    has_phases: bool,
}

pub(super) fn write(history: &History, min_bytes: ByteSize, to: impl Write) -> Result<()> {
    let mut frames = Frames::default();
    let mut events = history.events.iter();
    let mut document = Document {
        history,
        has_phases: events.any(|event| frames.category(event.path).is_some()),
        frames,
    };
    let mut pickle = Pickle::new(to)?;
    pickle.dict(|pickle| {
        pickle.text("device_traces")?;
        pickle.list([()], |pickle, ()| document.trace(pickle))?;
        pickle.text("segments")?;
        segments::write(pickle, history, &mut document.frames, min_bytes)
    })?;
    pickle.finish()
}

/// The viewer's names for an event. It draws a release at its completion.
fn actions(event: &Event) -> &'static [&'static str] {
    match event.what {
        HostEvent::Allocated { .. } => &["alloc"],
        HostEvent::Freed { .. } => &["free_requested", "free_completed"],
        HostEvent::Exhausted { .. } => &["oom"],
    }
}

impl Document<'_> {
    /// The events of the one device, and when the record ended.
    fn trace<W: Write>(&mut self, pickle: &mut Pickle<W>) -> Result<()> {
        let events = self.history.events.iter();
        let rows =
            events.flat_map(|event| actions(event).iter().map(move |name| Some((*name, event))));
        pickle.list(rows.chain(iter::once(None)), |pickle, row| {
            pickle.dict(|pickle| match row {
                Some((action, event)) => self.event(pickle, action, event),
                None => {
                    pickle.text_at("action", "snapshot")?;
                    pickle.number_at("addr", 0)?;
                    pickle.number_at("size", 0)?;
                    pickle.number_at("stream", 0)?;
                    pickle.number_at("time_us", self.history.ended)?;
                    self.category(pickle, None)
                }
            })
        })
    }

    fn event<W: Write>(
        &mut self,
        pickle: &mut Pickle<W>,
        action: &str,
        event: &Event,
    ) -> Result<()> {
        let (place, address, bytes) = match event.what {
            HostEvent::Allocated { address, bytes } | HostEvent::Freed { address, bytes } => {
                ("addr", address, bytes)
            }
            HostEvent::Exhausted { requested, free } => ("device_free", free, requested),
        };
        pickle.text_at("action", action)?;
        pickle.number_at(place, address as u64)?;
        pickle.number_at("size", bytes as u64)?;
        pickle.number_at("stream", 0)?;
        let time = self.history.began.saturating_add(event.nanoseconds / 1000);
        pickle.number_at("time_us", time)?;
        pickle.text("frames")?;
        self.frames.write(pickle, event)?;
        match event.what {
            HostEvent::Allocated { .. } => self.category(pickle, Some(event)),
            _ => Ok(()),
        }
    }

    fn category<W: Write>(&mut self, pickle: &mut Pickle<W>, event: Option<&Event>) -> Result<()> {
        if !self.has_phases {
            return Ok(());
        }
        let known = event.and_then(|event| self.frames.category(event.path));
        pickle.text_at("category", known.unwrap_or(UNKNOWN))
    }
}
