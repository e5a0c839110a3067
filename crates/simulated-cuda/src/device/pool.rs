//! A memory pool: segments reserved from the device, and the figures that its attributes report.

use std::collections::{BTreeMap, BTreeSet};

use super::clock::{Clocks, Mark, StreamKey};
use super::segment::{Pages, Segment};

/// Blocks are multiples of this many bytes.
pub const GRANULARITY: u64 = 512;

/// A current number, and the highest since the last reset.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gauge {
    pub current: u64,
    pub high: u64,
}

impl Gauge {
    fn add(&mut self, bytes: u64) {
        self.current += bytes;
        self.high = self.high.max(self.current);
    }

    fn subtract(&mut self, bytes: u64) {
        self.current -= bytes;
    }
}

/// A stream-ordered pool, or the pool that serves a device's synchronous allocations.
#[derive(Debug)]
pub struct Pool {
    segments: BTreeMap<u64, Segment>,
    /// Room and address of each segment, so that those without room are not looked at.
    by_room: BTreeSet<(u64, u64)>,
    /// Bytes that may be reserved; `None` without a limit.
    pub max_size: Option<u64>,
    /// Reserved bytes that a synchronization leaves in the pool.
    pub release_threshold: u64,
    /// The attributes 1 to 3, of which only the first (follow event dependencies) has an effect here: the other two
    /// let a driver reuse more, which a program cannot rely on.
    pub reuse: [u32; 3],
    pub reserved: Gauge,
    pub used: Gauge,
    /// Destroyed by the program and kept only for its live allocations.
    pub destroyed: bool,
}

impl Pool {
    pub fn new(max_size: Option<u64>) -> Pool {
        Pool {
            segments: BTreeMap::new(),
            by_room: BTreeSet::new(),
            max_size,
            release_threshold: 0,
            reuse: [1; 3],
            reserved: Gauge::default(),
            used: Gauge::default(),
            destroyed: false,
        }
    }

    /// Serves a request (a multiple of [`GRANULARITY`]) from reserved memory: from the segment with the least room that can.
    pub fn take(&mut self, bytes: u64, stream: StreamKey, clocks: &Clocks) -> Option<u64> {
        let events = self.reuse[0] != 0;
        let mut roomy = self.by_room.range((bytes, 0)..);
        let (start, base) = roomy.find_map(|&(_, base)| {
            let segment = self.segments.get(&base)?;
            let (start, _) = segment.best_fit(bytes, stream, clocks, events)?;
            Some((start, base))
        })?;
        self.change(base, |segment| segment.take(start, bytes));
        self.used.add(bytes);
        Some(start)
    }

    /// Changes what is live in a segment.
    fn change<T>(&mut self, base: u64, change: impl FnOnce(&mut Segment) -> T) -> Option<T> {
        let segment = self.segments.get_mut(&base)?;
        self.by_room.remove(&(segment.room, base));
        let changed = change(segment);
        self.by_room.insert((segment.room, base));
        Some(changed)
    }

    /// Whether a segment of this size keeps the pool within its limit.
    pub fn may_grow(&self, bytes: u64) -> bool {
        self.max_size
            .is_none_or(|most| self.reserved.current.saturating_add(bytes) <= most)
    }

    /// Adds a segment that the device has placed.
    pub fn grow(&mut self, start: u64, bytes: u64) {
        self.segments.insert(start, Segment::new(start, bytes));
        self.by_room.insert((bytes, start));
        self.reserved.add(bytes);
    }

    /// Frees a live block. Other streams may use it once the work before the mark is finished.
    pub fn free(&mut self, address: u64, mark: Option<Mark>) {
        let base = self
            .segments
            .range(..=address)
            .next_back()
            .map(|(&base, _)| base);
        let freed = base.and_then(|base| self.change(base, |segment| segment.free(address, mark)));
        self.used.subtract(freed.unwrap_or(0));
    }

    /// Removes entirely free segments, highest first, while more than `keep` bytes are reserved; returns their addresses.
    pub fn shrink(&mut self, keep: u64, clocks: &Clocks) -> Vec<u64> {
        let mut given_up = Vec::new();
        let idle: Vec<u64> = self
            .segments
            .iter()
            .rev()
            .filter(|(_, segment)| segment.is_idle(clocks))
            .map(|(&base, _)| base)
            .collect();
        for base in idle {
            if self.reserved.current <= keep {
                break;
            }
            if let Some(segment) = self.segments.remove(&base) {
                self.by_room.remove(&(segment.room, base));
                self.reserved.subtract(segment.bytes);
                given_up.push(base);
            }
        }
        for segment in self.segments.values_mut() {
            segment.settle(clocks);
        }
        given_up
    }

    /// Gives up all pages that are free for this stream, also those between live blocks; returns them as start and length.
    pub fn give_up_pages(&mut self, stream: StreamKey, clocks: &Clocks) -> Pages {
        let events = self.reuse[0] != 0;
        let mut given_up = Vec::new();
        self.by_room.clear();
        for (_, segment) in std::mem::take(&mut self.segments) {
            let (left, pages) = segment.without_free_pages(stream, clocks, events);
            for (base, segment) in left {
                self.by_room.insert((segment.room, base));
                self.segments.insert(base, segment);
            }
            for (_, bytes) in &pages {
                self.reserved.subtract(*bytes);
            }
            given_up.extend(pages);
        }
        given_up
    }

    /// Removes all segments of a destroyed pool.
    pub fn dissolve(&mut self) -> Vec<u64> {
        self.reserved.current = 0;
        self.by_room.clear();
        std::mem::take(&mut self.segments).into_keys().collect()
    }
}
