//! A piece of device memory that a pool has reserved, divided into blocks.

use std::collections::BTreeMap;

use super::clock::{Clocks, Mark, StreamKey};
use super::range::PAGE;

/// Start and length of each run of pages.
pub type Pages = Vec<(u64, u64)>;

#[derive(Clone, Copy, Debug)]
enum Use {
    Live,
    /// Free once the work before the mark is finished; `None` when the host knows that it is.
    Free(Option<Mark>),
}

/// The state of two adjacent blocks after joining them; `None` if they may not be joined. Blocks freed on different streams may not,
/// because they become usable at different times.
fn both_free(left: Use, right: Use) -> Option<Use> {
    match (left, right) {
        (Use::Free(None), Use::Free(None)) => Some(left),
        (Use::Free(Some(a)), Use::Free(Some(b))) if a.stream == b.stream => {
            Some(if a.number >= b.number { left } else { right })
        }
        _ => None,
    }
}

#[derive(Clone, Copy, Debug)]
struct Block {
    bytes: u64,
    usage: Use,
}

/// Blocks by address, which cover the segment without gaps.
#[derive(Debug)]
pub struct Segment {
    pub bytes: u64,
    /// Bytes that are not live.
    pub room: u64,
    blocks: BTreeMap<u64, Block>,
}

impl Segment {
    pub fn new(start: u64, bytes: u64) -> Segment {
        let blocks = BTreeMap::from([(
            start,
            Block {
                bytes,
                usage: Use::Free(None),
            },
        )]);
        Segment {
            bytes,
            room: bytes,
            blocks,
        }
    }

    /// Start and length of the smallest run of adjacent blocks that is free for this stream and large enough.
    pub fn best_fit(
        &self,
        bytes: u64,
        stream: StreamKey,
        clocks: &Clocks,
        events: bool,
    ) -> Option<(u64, u64)> {
        let mut best: Option<(u64, u64)> = None;
        let mut run: Option<(u64, u64)> = None;
        let mut close = |run: Option<(u64, u64)>| {
            if let Some((start, length)) = run.filter(|(_, length)| *length >= bytes)
                && best.is_none_or(|(_, least)| length < least)
            {
                best = Some((start, length));
            }
        };
        for (&start, block) in &self.blocks {
            let usable = match block.usage {
                Use::Live => false,
                Use::Free(None) => true,
                Use::Free(Some(mark)) => clocks.precedes(mark, stream, events),
            };
            if usable {
                run = Some(run.map_or((start, block.bytes), |(first, length)| {
                    (first, length + block.bytes)
                }));
            } else {
                close(run.take());
            }
        }
        close(run);
        best
    }

    /// Whole pages that are free for this stream, as start and length.
    fn free_pages(&self, stream: StreamKey, clocks: &Clocks, events: bool) -> Pages {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (&start, block) in &self.blocks {
            let usable = match block.usage {
                Use::Live => false,
                Use::Free(None) => true,
                Use::Free(Some(mark)) => clocks.precedes(mark, stream, events),
            };
            match runs.last_mut() {
                Some((_, end)) if usable && *end == start => *end += block.bytes,
                _ if usable => runs.push((start, start + block.bytes)),
                _ => {}
            }
        }
        let pages = runs
            .into_iter()
            .map(|(start, end)| (start.next_multiple_of(PAGE), end / PAGE * PAGE));
        let pages = pages.filter(|(start, end)| start < end);
        pages.map(|(start, end)| (start, end - start)).collect()
    }

    /// Gives up the pages that are free for this stream. Returns what is left, as segments by address, and the pages.
    pub fn without_free_pages(
        self,
        stream: StreamKey,
        clocks: &Clocks,
        events: bool,
    ) -> (Vec<(u64, Segment)>, Pages) {
        let pages = self.free_pages(stream, clocks, events);
        let mut left: Vec<(u64, Segment)> = Vec::new();
        let mut keep = |start: u64, end: u64, usage: Use| {
            if start >= end {
                return;
            }
            let bytes = end - start;
            let joins = left
                .last_mut()
                .filter(|(base, segment)| base + segment.bytes == start);
            let segment = match joins {
                Some((_, segment)) => segment,
                None => {
                    let empty = Segment {
                        bytes: 0,
                        room: 0,
                        blocks: BTreeMap::new(),
                    };
                    left.push((start, empty));
                    let Some((_, segment)) = left.last_mut() else {
                        return;
                    };
                    segment
                }
            };
            segment.bytes += bytes;
            if !matches!(usage, Use::Live) {
                segment.room += bytes;
            }
            segment.blocks.insert(start, Block { bytes, usage });
        };
        for (start, block) in self.blocks {
            let end = start + block.bytes;
            let mut from = start;
            // Pages are in the order of their addresses, and lie in blocks that are free.
            for &(page, bytes) in &pages {
                if page < end && page + bytes > from {
                    keep(from, page.max(from), block.usage);
                    from = (page + bytes).min(end);
                }
            }
            keep(from, end, block.usage);
        }
        (left, pages)
    }

    /// Makes the first `bytes` of a run live. The rest of its last block stays free with that block's mark.
    pub fn take(&mut self, start: u64, bytes: u64) {
        self.room -= bytes;
        let end = start + bytes;
        let mut at = start;
        while at < end {
            let Some(block) = self.blocks.remove(&at) else {
                break;
            };
            at += block.bytes;
            if at > end {
                self.blocks.insert(
                    end,
                    Block {
                        bytes: at - end,
                        usage: block.usage,
                    },
                );
            }
        }
        self.blocks.insert(
            start,
            Block {
                bytes,
                usage: Use::Live,
            },
        );
    }

    /// Frees a live block and returns its length.
    pub fn free(&mut self, start: u64, mark: Option<Mark>) -> u64 {
        let Some(block) = self.blocks.get_mut(&start) else {
            return 0;
        };
        block.usage = Use::Free(mark);
        let bytes = block.bytes;
        self.room += bytes;
        self.join_next(start);
        if let Some((&before, _)) = self.blocks.range(..start).next_back() {
            self.join_next(before);
        }
        bytes
    }

    /// Joins a block with the next one if both are free for the same streams.
    fn join_next(&mut self, start: u64) {
        let Some(block) = self.blocks.get(&start).copied() else {
            return;
        };
        let next = start + block.bytes;
        let Some(neighbour) = self.blocks.get(&next).copied() else {
            return;
        };
        if let Some(usage) = both_free(block.usage, neighbour.usage) {
            self.blocks.remove(&next);
            self.blocks.insert(
                start,
                Block {
                    bytes: block.bytes + neighbour.bytes,
                    usage,
                },
            );
        }
    }

    /// Removes marks that the host knows to be finished, and joins blocks that have become alike.
    pub fn settle(&mut self, clocks: &Clocks) {
        let starts: Vec<u64> = self.blocks.keys().rev().copied().collect();
        for start in starts {
            if let Some(block) = self.blocks.get_mut(&start)
                && let Use::Free(Some(mark)) = block.usage
                && clocks.passed(mark)
            {
                block.usage = Use::Free(None);
            }
            self.join_next(start);
        }
    }

    /// Whether no block is live and the host knows that all work on the blocks is finished.
    pub fn is_idle(&self, clocks: &Clocks) -> bool {
        self.blocks.values().all(|block| match block.usage {
            Use::Live => false,
            Use::Free(mark) => mark.is_none_or(|mark| clocks.passed(mark)),
        })
    }
}
