//! Copies between pinned and device memory, from the call until the program knows that they are finished, and the program's mistakes meanwhile:
//! hazards.
//!
//! What counts is the order that streams, events and synchronizations guarantee, not when a copy is executed: a program that is lucky with
//! the present schedule has a hazard all the same. Hazards are:
//!
//! - the pinned memory is freed before the host has waited for the copy, or written by the host, found by a checksum of what is copied to a
//!   device;
//! - the pinned memory is the target of another copy, or the source of one after it was a target, on a stream that has not waited for the first;
//! - a copy to a device is not ordered after the allocation of its destination;
//! - the destination is used by a copy, a memset or a kernel, or freed, on a stream that has not waited for the copy. A kernel's uses are
//!   known from the addresses among its arguments;
//! - what is copied to the host is written by a copy or a memset, or freed, on a stream that has not waited for the copy. What kernels write
//!   is not known.

use std::ops::Range;

use super::Device;
use super::clock::{Mark, StreamKey};

#[derive(Debug)]
struct Unfinished {
    mark: Mark,
    to_device: bool,
    pinned: Range<u64>,
    on_device: Range<u64>,
    /// Of what is copied to the device; `None` where another copy writes it.
    checksum: Option<u64>,
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
    /// Follows a copy on a stream, if it is one between pinned and device memory. Both are live.
    pub fn follow_copy(&mut self, to: u64, from: u64, bytes: u64, stream: StreamKey) {
        let to_device = self.memory.is_pinned(from);
        let (start, there) = if to_device { (from, to) } else { (to, from) };
        let Some(allocated) = self.memory.live_at(there).map(|live| live.mark) else {
            return;
        };
        if bytes == 0 || !self.memory.is_pinned(start) {
            return;
        }
        let (pinned, on_device) = (start..start + bytes, there..there + bytes);
        let is_early = |mark| !self.clocks.precedes(mark, stream, true);
        let mut hazards = u64::from(to_device && allocated.is_some_and(is_early));
        let mut is_written = false;
        for copy in &mut self.copies.0 {
            if !overlap(&copy.pinned, &pinned) || to_device && copy.to_device {
                continue;
            }
            hazards += u64::from(is_early(copy.mark));
            is_written |= !copy.to_device;
            copy.checksum = None;
        }
        self.counted.hazards += hazards;
        // SAFETY: the caller has checked that they are live.
        let checksum = (to_device && !is_written).then(|| unsafe { checksum(&pinned) });
        self.copies.0.push(Unfinished {
            mark: self.clocks.mark(stream),
            to_device,
            pinned,
            on_device,
            checksum,
        });
    }

    /// Notes that work on a stream uses these bytes.
    pub fn note_use(&mut self, used: Range<u64>, stream: StreamKey) {
        self.note(used, stream, false);
    }

    /// Notes that work on a stream writes or frees these bytes.
    pub fn note_write(&mut self, used: Range<u64>, stream: StreamKey) {
        self.note(used, stream, true);
    }

    fn note(&mut self, used: Range<u64>, stream: StreamKey, writes: bool) {
        let unordered = |copy: &&Unfinished| {
            (writes || copy.to_device)
                && overlap(&copy.on_device, &used)
                && !self.clocks.precedes(copy.mark, stream, true)
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
        if let Some(account) = &mut self.account {
            account.forget_pinned(&range);
        }
        if self.faults.lost.is_some() {
            return self.forget_copies();
        }
        self.settle_copies();
        let before = self.copies.0.len();
        self.copies.0.retain(|copy| !overlap(&copy.pinned, &range));
        self.counted.hazards += (before - self.copies.0.len()) as u64;
    }

    /// Checks those copies that the host knows to be finished.
    pub fn settle_copies(&mut self) {
        let clocks = &self.clocks;
        let passed = |copy: &mut Unfinished| clocks.passed(copy.mark);
        for copy in self.copies.0.extract_if(.., passed) {
            let Some(expected) = copy.checksum else {
                continue;
            };
            // SAFETY: pinned memory that is freed takes its copies along.
            let is_same = unsafe { checksum(&copy.pinned) } == expected;
            self.counted.copies_checked += 1;
            self.counted.hazards += u64::from(!is_same);
        }
    }

    /// Forgets the copies of a lost context, which finishes none.
    pub fn forget_copies(&mut self) {
        self.copies.0.clear();
    }
}
