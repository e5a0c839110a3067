//! Ranges of addresses, as the segments of a GPU's allocator.

use std::ops::Range;

use super::event::Event;
use crate::memory::HostEvent;

/// Ranges with a smaller gap are one. With more of them, a viewer's rows become too thin to see.
const GAP: usize = 1 << 20;

/// The ranges in which the blocks of these events lay, in ascending order. A viewer needs one around each block, at any time.
pub(super) fn of(events: &[Event]) -> Vec<Range<usize>> {
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
pub(super) fn after(segments: &[Range<usize>]) -> usize {
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
        let segments = of(&events);
        assert_eq!(segments, [GAP..2 * GAP + 68, 9 * GAP..9 * GAP + 16]);
        assert_eq!(after(&segments), 11 * GAP);
        assert_eq!((of(&[]), after(&[])), (vec![], GAP));
    }
}
