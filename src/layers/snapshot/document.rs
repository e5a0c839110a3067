//! A history in the form of `torch.cuda.memory._snapshot()`.

use std::io::{Result, Write};
use std::iter;
use std::ops::Range;

use bytesize::ByteSize;

use super::event::Event;
use super::frames::{Frames, frame};
use super::history::History;
use super::pickle::Pickle;
use super::segments;
use crate::memory::HostEvent;

/// The category of what belongs to no phase, by the viewer's name for it. A version of the viewer fails on a file that has categories
/// but not this one.
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
        document.segments(pickle, min_bytes)
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

    /// The ranges in which blocks lay with those that are live, and one more for all others.
    fn segments<W: Write>(&mut self, pickle: &mut Pickle<W>, min_bytes: ByteSize) -> Result<()> {
        let history = self.history;
        let ranges = segments::of(&history.events);
        let others = usize::try_from(history.others).unwrap_or(usize::MAX);
        let address = segments::after(&ranges);
        let last = (others > 0).then(|| address..address.saturating_add(others));
        let rows = ranges.into_iter().map(|range| (range, false));
        let rows = rows.chain(last.map(|range| (range, true)));
        pickle.list(rows, |pickle, (range, is_others)| {
            let live = history.live.range(range.clone());
            let active = match is_others {
                true => range.len(),
                false => live.clone().map(|(_, (bytes, _))| *bytes).sum(),
            };
            pickle.dict(|pickle| {
                describe(pickle, &range, active)?;
                pickle.text("blocks")?;
                match is_others {
                    true => pickle.list([()], |pickle, ()| {
                        block(pickle, range.len(), |pickle| {
                            let what = format!("before the first event, or below {min_bytes}");
                            pickle.list([what], |pickle, what| frame(pickle, "allocated", &what))
                        })
                    }),
                    false => {
                        let live = live.map(|(address, (bytes, event))| (*address, *bytes, event));
                        pickle.list(filled(&range, live), |pickle, (bytes, event)| match event {
                            Some(event) => {
                                block(pickle, bytes, |pickle| self.frames.write(pickle, event))
                            }
                            None => pickle.dict(|pickle| {
                                pickle.number_at("size", bytes as u64)?;
                                pickle.number_at("requested_size", 0)?;
                                pickle.text_at("state", "inactive")
                            }),
                        })
                    }
                }
            })
        })
    }
}

/// Writes a segment's own entries.
fn describe<W: Write>(pickle: &mut Pickle<W>, range: &Range<usize>, active: usize) -> Result<()> {
    pickle.number_at("device", 0)?;
    pickle.number_at("address", range.start as u64)?;
    pickle.number_at("total_size", range.len() as u64)?;
    pickle.number_at("allocated_size", active as u64)?;
    pickle.number_at("active_size", active as u64)?;
    pickle.number_at("requested_size", active as u64)?;
    pickle.number_at("stream", 0)?;
    pickle.text_at("segment_type", "large")?;
    pickle.text("frames")?;
    pickle.list([(); 0], |_, ()| Ok(()))
}

/// Writes a live block.
fn block<W: Write>(
    pickle: &mut Pickle<W>,
    bytes: usize,
    frames: impl FnOnce(&mut Pickle<W>) -> Result<()>,
) -> Result<()> {
    pickle.dict(|pickle| {
        pickle.number_at("size", bytes as u64)?;
        pickle.number_at("requested_size", bytes as u64)?;
        pickle.text_at("state", "active_allocated")?;
        pickle.text("frames")?;
        frames(pickle)
    })
}

/// The blocks of a segment with what lies between them, without a gap, since the file gives no addresses of blocks.
fn filled<'a>(
    segment: &Range<usize>,
    live: impl Iterator<Item = (usize, usize, &'a Event)>,
) -> Vec<(usize, Option<&'a Event>)> {
    let mut blocks = Vec::new();
    let mut end = segment.start;
    for (address, bytes, event) in live {
        if address > end {
            blocks.push((address - end, None));
        }
        blocks.push((bytes, Some(event)));
        end = address.saturating_add(bytes);
    }
    if segment.end > end {
        blocks.push((segment.end - end, None));
    }
    blocks
}
