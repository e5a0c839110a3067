//! Who held a device's memory, when it was highest and over time, for the report at the program's exit.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::Device;
use super::pool::GRANULARITY;
use crate::marks::{self, Here, Work};

/// The most points of a time line.
const POINTS: usize = 512;

/// Bytes held, allocation by allocation: the highest of each `stride` allocations.
#[derive(Debug)]
pub struct Line {
    pub stride: u64,
    seen: u64,
    pub points: Vec<u64>,
}

impl Default for Line {
    fn default() -> Line {
        Line {
            stride: 1,
            seen: 0,
            points: Vec::new(),
        }
    }
}

impl Line {
    fn add(&mut self, bytes: u64) {
        if self.seen.is_multiple_of(self.stride) {
            if self.points.len() == POINTS {
                let pairs = self.points.chunks(2);
                self.points = pairs
                    .filter_map(|pair| pair.iter().max().copied())
                    .collect();
                self.stride *= 2;
            }
            self.points.push(bytes);
        } else if let Some(last) = self.points.last_mut() {
            *last = bytes.max(*last);
        }
        self.seen += 1;
    }
}

/// A number that differs if anything differs: FNV-1a.
#[derive(Debug)]
pub struct Digest(pub u64);

impl Default for Digest {
    fn default() -> Digest {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    fn add(&mut self, word: u64) {
        for byte in word.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

/// An allocation that there was no memory for.
#[derive(Debug)]
pub struct Refused {
    pub bytes: u64,
    pub held: u64,
    pub here: Here,
    /// By a limit of the program's own, and not for lack of the device's memory.
    pub by_limit: bool,
    /// Allocations since then that succeeded.
    pub since: u64,
}

/// The micro-batches of so many samples.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pieces {
    pub count: u64,
    /// Those of them in which an allocation was refused.
    pub refused: u64,
    /// The most that was held in one that had none refused, and what was held when that one began.
    pub peak: u64,
    pub before: u64,
    /// Bytes of that peak that it could do without, as the program says.
    pub could_save: u64,
}

/// What the program copied to the host although this run does not know it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadBack {
    pub copies: u64,
    pub bytes: u64,
}

#[derive(Debug)]
struct Piece {
    work: Arc<Work>,
    is_refused: bool,
    peak: u64,
    before: u64,
}

/// The account of one device.
#[derive(Debug, Default)]
pub struct Account {
    /// Bytes held, by the place that allocated them.
    held: Vec<u64>,
    total: u64,
    pub peak: u64,
    /// The same in blocks, as pools give them out.
    blocks: u64,
    pub peak_blocks: u64,
    /// What was held at the peak, by place, and where the program was.
    pub held_at_peak: Vec<u64>,
    pub peak_here: Here,
    pub refused: Option<Refused>,
    piece: Option<Piece>,
    /// By number of samples.
    pieces: BTreeMap<u64, Pieces>,
    /// By place.
    pub read_back: BTreeMap<usize, ReadBack>,
    /// Pinned memory, by the address that a copy wrote to, whose contents would be other ones if the device computed.
    uncertain: BTreeSet<u64>,
    pub line: Line,
    /// Of all allocations and refusals, in their order. Frees are left out: what a program drops at once, such as candle's gradients, has no order.
    pub digest: Digest,
}

impl Account {
    /// Pinned memory is freed: what is pinned there later is known.
    pub fn forget_pinned(&mut self, range: &Range<u64>) {
        self.uncertain.retain(|address| !range.contains(address));
    }

    fn at(&mut self, place: usize) -> &mut u64 {
        if self.held.len() <= place {
            self.held.resize(place + 1, 0);
        }
        &mut self.held[place]
    }

    /// Follows the pieces of work of the thread that allocates; other threads belong to none.
    fn follow(&mut self, here: &Here) {
        let Some(work) = &here.work else { return };
        if self
            .piece
            .as_ref()
            .is_some_and(|piece| piece.work.serial == work.serial)
        {
            return;
        }
        let next = Piece {
            work: Arc::clone(work),
            is_refused: false,
            peak: self.total,
            before: self.total,
        };
        if let Some(last) = self.piece.replace(next) {
            Self::add(&mut self.pieces, &last);
        }
    }

    /// The piece in progress, unless this thread has left it, or works on something else.
    fn piece_of(&mut self, here: &Here) -> Option<&mut Piece> {
        let serial = here.work.as_ref()?.serial;
        self.piece
            .as_mut()
            .filter(|piece| piece.work.serial == serial)
    }

    fn add(to: &mut BTreeMap<u64, Pieces>, piece: &Piece) {
        let pieces = to.entry(piece.work.samples).or_default();
        pieces.count += 1;
        pieces.refused += u64::from(piece.is_refused);
        if !piece.is_refused && piece.peak >= pieces.peak {
            pieces.peak = piece.peak;
            pieces.before = piece.before;
            pieces.could_save = piece.work.could_save.load(Relaxed);
        }
    }

    /// Counts an allocation; returns the number of the place to which it belongs.
    pub fn allocated(&mut self, bytes: u64) -> usize {
        let here = marks::here();
        self.follow(&here);
        *self.at(here.place) += bytes;
        self.total += bytes;
        self.blocks += bytes.next_multiple_of(GRANULARITY);
        self.peak_blocks = self.peak_blocks.max(self.blocks);
        if let Some(refused) = &mut self.refused {
            refused.since += 1;
        }
        let total = self.total;
        if let Some(piece) = self.piece_of(&here) {
            piece.peak = piece.peak.max(total);
        }
        self.line.add(self.total);
        self.digest.add(bytes);
        let place = here.place;
        if self.total > self.peak {
            self.peak = self.total;
            self.held_at_peak.clone_from(&self.held);
            self.peak_here = here;
        }
        place
    }

    pub fn freed(&mut self, place: usize, bytes: u64) {
        *self.at(place) -= bytes;
        self.total -= bytes;
        self.blocks -= bytes.next_multiple_of(GRANULARITY);
    }

    /// Counts an allocation that there was no memory for.
    pub fn refused(&mut self, bytes: u64, by_limit: bool) {
        let here = marks::here();
        self.follow(&here);
        if let Some(piece) = self.piece_of(&here) {
            piece.is_refused = true;
        }
        // Sizes are less than half of all numbers.
        self.digest.add(!bytes);
        self.refused = Some(Refused {
            bytes,
            held: self.total,
            here,
            by_limit,
            since: 0,
        });
    }

    /// The pieces of work by their number of samples, with the one in progress.
    pub fn pieces(&self) -> BTreeMap<u64, Pieces> {
        let mut pieces = self.pieces.clone();
        if let Some(piece) = &self.piece {
            Self::add(&mut pieces, piece);
        }
        pieces
    }
}

impl Device {
    /// Notes that these bytes of a block are written: what the host knows, if `known`.
    pub fn note_written(&mut self, address: u64, bytes: u64, known: bool) {
        if self.account.is_none() {
            return;
        }
        let is_whole = self
            .memory
            .live
            .get(&address)
            .is_some_and(|live| live.bytes <= bytes);
        if let Some(live) = self.memory.live_at_mut(address) {
            live.is_known = known || live.is_known && !is_whole;
            live.is_unknown = !known || live.is_unknown && !is_whole;
        }
    }

    /// Whether a block, or pinned memory from where a copy wrote it, holds what it would hold if the device computed, as far as copies and
    /// memsets wrote it.
    pub fn knows(&self, address: u64) -> bool {
        let live = self.memory.live_at(address);
        let is_uncertain = |account: &Account| account.uncertain.contains(&address);
        self.computes
            || live.is_none_or(|live| live.is_known && !live.is_unknown)
                && self.keeps(address)
                && !self.account.as_ref().is_some_and(is_uncertain)
    }

    /// Notes the blocks among a kernel's arguments: it may write to them.
    pub fn note_computed(&mut self, arguments: &[u8]) {
        if self.account.is_none() {
            return;
        }
        for words in arguments.as_chunks().0 {
            self.note_written(u64::from_ne_bytes(*words), 0, false);
        }
    }

    /// Notes a copy from a block to the host. In pinned memory nobody may look at it: it may come back.
    pub fn note_read_back(&mut self, address: u64, to: u64, bytes: u64) {
        if self.memory.live_at(address).is_none() {
            return;
        }
        let (is_known, is_pinned) = (self.knows(address), self.memory.is_pinned(to));
        let Some(account) = &mut self.account else {
            return;
        };
        match (is_known, is_pinned) {
            (true, _) => drop(account.uncertain.remove(&to)),
            (false, true) => drop(account.uncertain.insert(to)),
            (false, false) => {
                let read = account.read_back.entry(marks::here().place).or_default();
                read.copies += 1;
                read.bytes += bytes;
            }
        }
    }
}
