//! Copies from pinned memory, from the call until the program knows that they are finished, and the program's mistakes meanwhile: hazards.
//!
//! What counts is the order that streams, events and synchronizations guarantee, not when a copy is executed: a program that is lucky with
//! the present schedule has a hazard all the same. Hazards are:
//!
//! - the pinned memory is written or freed before the host has waited for the copy, found by a checksum;
//! - the copy is not ordered after the allocation of its destination;
//! - the destination is used by a copy, a memset or a kernel, or freed, on a stream that has not waited for the copy. A kernel's uses are
//!   known from the addresses among its arguments.

use std::ops::Range;

use super::Device;
use super::clock::{Mark, StreamKey};

#[derive(Debug)]
struct Unfinished {
    mark: Mark,
    from: Range<u64>,
    to: Range<u64>,
    checksum: u64,
}

/// The copies of a device that the host has not waited for.
#[derive(Debug, Default)]
pub struct Copies(Vec<Unfinished>);

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// # Safety
/// The bytes are live.
unsafe fn checksum(range: &Range<u64>) -> u64 {
    let bytes = (range.end - range.start) as usize;
    // SAFETY: by contract.
    let bytes = unsafe { std::slice::from_raw_parts(range.start as *const u8, bytes) };
    let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

impl Device {
    /// Follows a copy on a stream, if it is one from pinned to device memory. Both are live.
    pub fn follow_copy(&mut self, to: u64, from: u64, bytes: u64, stream: StreamKey) {
        let Some(allocated) = self.memory.live_at(to).map(|live| live.mark) else {
            return;
        };
        if bytes == 0 || !self.memory.is_pinned(from) {
            return;
        }
        if allocated.is_some_and(|mark| !self.clocks.precedes(mark, stream, true)) {
            self.counted.hazards += 1;
        }
        let from = from..from + bytes;
        // SAFETY: the caller has checked that they are live.
        let checksum = unsafe { checksum(&from) };
        self.copies.0.push(Unfinished {
            mark: self.clocks.mark(stream),
            from,
            to: to..to + bytes,
            checksum,
        });
    }

    /// Notes that work on a stream uses these bytes.
    pub fn note_use(&mut self, used: Range<u64>, stream: StreamKey) {
        let unordered = |copy: &&Unfinished| {
            overlap(&copy.to, &used) && !self.clocks.precedes(copy.mark, stream, true)
        };
        self.counted.hazards += self.copies.0.iter().filter(unordered).count() as u64;
    }

    /// Notes that a kernel is given these arguments.
    pub fn note_arguments(&mut self, arguments: &[u8], stream: StreamKey) {
        if self.copies.0.is_empty() {
            return;
        }
        for words in arguments.as_chunks().0 {
            let address = u64::from_ne_bytes(*words);
            self.note_use(address..address.saturating_add(1), stream);
        }
    }

    /// Notes that pinned memory is about to be freed.
    pub fn note_unpinned(&mut self, range: Range<u64>) {
        if self.faults.lost.is_some() {
            return self.forget_copies();
        }
        self.settle_copies();
        let before = self.copies.0.len();
        self.copies.0.retain(|copy| !overlap(&copy.from, &range));
        self.counted.hazards += (before - self.copies.0.len()) as u64;
    }

    /// Checks those copies that the host knows to be finished.
    pub fn settle_copies(&mut self) {
        let clocks = &self.clocks;
        let passed = |copy: &mut Unfinished| clocks.passed(copy.mark);
        for copy in self.copies.0.extract_if(.., passed) {
            // SAFETY: pinned memory that is freed takes its copies along.
            let is_same = unsafe { checksum(&copy.from) } == copy.checksum;
            self.counted.copies_checked += 1;
            self.counted.hazards += u64::from(!is_same);
        }
    }

    /// Forgets the copies of a lost context, which finishes none.
    pub fn forget_copies(&mut self) {
        self.copies.0.clear();
    }
}
