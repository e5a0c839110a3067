//! Ranges of addresses, as the segments of a GPU's allocator.

use std::io::{Result, Write};
use std::ops::Range;

use bytesize::ByteSize;

use super::event::Event;
use super::frames::{Frames, frame};
use super::history::History;
use super::pickle::Pickle;
use crate::memory::HostEvent;

/// Ranges with a smaller gap are one. With more of them, a viewer's rows become too thin to see.
const GAP: usize = 1 << 20;

/// Writes the ranges in which blocks lay with those that are live, and one more for all others.
pub(super) fn write<W: Write>(
    pickle: &mut Pickle<W>,
    history: &History,
    frames: &mut Frames,
    min_bytes: ByteSize,
) -> Result<()> {
    let ranges = ranges(&history.events);
    let others = usize::try_from(history.others).unwrap_or(usize::MAX);
    let address = after(&ranges);
    let last = (others > 0).then(|| address..address.saturating_add(others));
    let rows = ranges.into_iter().map(|range| (range, false));
    let rows = rows.chain(last.map(|range| (range, true)));
    pickle.list(rows, |pickle, (range, is_others)| {
        let live = history.live.range(range.clone());
        let active = match is_others {
            true => range.len(),
            false => (live.clone().map(|(_, (bytes, _))| *bytes)).fold(0, usize::saturating_add),
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
                        Some(event) => block(pickle, bytes, |pickle| frames.write(pickle, event)),
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

/// The ranges in which the blocks of these events lay, in ascending order. A viewer needs one around each block, at any time.
fn ranges(events: &[Event]) -> Vec<Range<usize>> {
    let blocks = events.iter().filter_map(|event| match event.what {
        HostEvent::Allocated { address, bytes } | HostEvent::Freed { address, bytes } => {
            Some((address, address.saturating_add(bytes)))
        }
        HostEvent::Exhausted { .. } => None,
    });
    let mut blocks: Vec<_> = blocks.collect();
    blocks.sort_unstable();
    let mut segments: Vec<Range<usize>> = Vec::new();
    for (start, end) in blocks {
        match segments.last_mut() {
            Some(last) if start <= last.end.saturating_add(GAP) => last.end = last.end.max(end),
            _ => segments.push(start..end),
        }
    }
    segments
}

/// An address of its own for a block that lies nowhere in particular.
fn after(segments: &[Range<usize>]) -> usize {
    segments.last().map_or(GAP, |last| {
        let end = last.end.saturating_add(2 * GAP);
        end - end % GAP
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_blocks_share_a_segment() {
        let block = |address, bytes| HostEvent::Allocated { address, bytes };
        let blocks = [
            block(9 * GAP, 16),
            block(GAP, 64),
            HostEvent::Exhausted {
                requested: 1,
                free: 0,
            },
            block(GAP + 8, 8),
            block(2 * GAP + 64, 4),
        ];
        let events = blocks.map(|what| Event::here(what, 0));
        let segments = ranges(&events);
        assert_eq!(segments, [GAP..2 * GAP + 68, 9 * GAP..9 * GAP + 16]);
        assert_eq!(after(&segments), 11 * GAP);
        assert_eq!((ranges(&[]), after(&[])), (vec![], GAP));
    }
}
