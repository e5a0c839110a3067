//! The register file of one warp.
//!
//! A register is the 32 values of its lanes, one after the other and as wide as its type, so that a loop over the lanes is
//! a loop over an array. A predicate is one 32-bit mask.

use std::cell::Cell;

/// Lanes of a warp.
pub const LANES: usize = 32;

/// The place of a register in the file: a byte offset, a multiple of [`Slot::ALIGN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(pub u32);

impl Slot {
    /// Every register starts at a multiple of this many bytes.
    pub const ALIGN: usize = 32;
}

/// A value of a lane: plain bits, of which every pattern is valid.
pub trait Word: Copy + Default + Send + Sync + 'static {}

macro_rules! words {
    ($($word:ty)*) => { $(impl Word for $word {})* };
}
words!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 half::f16 half::bf16);

/// The register file of one warp.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    cells: &'a [Cell<u64>],
}

impl<'a> Frame<'a> {
    /// A frame over this memory.
    pub fn new(memory: &'a mut [u64]) -> Frame<'a> {
        Frame {
            cells: Cell::from_mut(memory).as_slice_of_cells(),
        }
    }

    fn pointer<T>(self, slot: Slot, count: usize) -> *mut T {
        let end = slot.0 as usize + count * size_of::<T>();
        assert!(end <= size_of_val(self.cells), "a register beyond the file");
        // SAFETY: the offset lies inside the cells, as just checked.
        unsafe { self.cells.as_ptr().cast::<u8>().add(slot.0 as usize) as *mut T }
    }

    /// A copy of a register's lanes.
    #[inline(always)]
    pub fn lanes<T: Word>(self, slot: Slot) -> [T; LANES] {
        // SAFETY: `pointer` checked the bounds, slots are aligned for every word, and every bit pattern is a `Word`.
        unsafe { self.pointer::<[T; LANES]>(slot, 1).read() }
    }

    /// One lane of a register.
    pub fn lane<T: Word>(self, slot: Slot, lane: usize) -> T {
        // SAFETY: as in `lanes`; the lane is below 32.
        unsafe { self.pointer::<T>(slot, LANES).add(lane % LANES).read() }
    }

    /// Writes the lanes of `mask`.
    #[inline(always)]
    pub fn write<T: Word>(self, slot: Slot, values: &[T; LANES], mask: u32) {
        let target = self.pointer::<[T; LANES]>(slot, 1);
        if mask == u32::MAX {
            // SAFETY: as in `lanes`; the cells may be written through a shared reference.
            unsafe { target.write(*values) };
            return;
        }
        // SAFETY: as above.
        let mut merged = unsafe { target.read() };
        for lane in 0..LANES {
            if mask & (1 << lane) != 0 {
                merged[lane] = values[lane];
            }
        }
        // SAFETY: as above.
        unsafe { target.write(merged) };
    }

    /// Writes one value to all lanes.
    pub fn fill<T: Word>(self, slot: Slot, value: T) {
        self.write(slot, &[value; LANES], u32::MAX);
    }

    /// A predicate's mask.
    #[inline(always)]
    pub fn mask(self, slot: Slot) -> u32 {
        // SAFETY: as in `lanes`.
        unsafe { self.pointer::<u32>(slot, 1).read() }
    }

    /// Writes the lanes of `mask` of a predicate.
    #[inline(always)]
    pub fn set_mask(self, slot: Slot, value: u32, mask: u32) {
        let target = self.pointer::<u32>(slot, 1);
        // SAFETY: as in `write`.
        unsafe { target.write((target.read() & !mask) | (value & mask)) };
    }

    /// `d = f(a)` in the lanes of `mask`. All lanes are computed, as on the device; only those of the mask are kept.
    #[inline(always)]
    pub fn map1<A: Word, D: Word>(self, [d, a]: [Slot; 2], mask: u32, f: impl Fn(A) -> D) {
        let a = self.pointer::<A>(a, LANES);
        let mut out = [D::default(); LANES];
        for (lane, out) in out.iter_mut().enumerate() {
            // SAFETY: as in `lanes`; `lane` is below 32.
            *out = f(unsafe { a.add(lane).read() });
        }
        self.write(d, &out, mask);
    }

    /// `d = f(a, b)` in the lanes of `mask`.
    #[inline(always)]
    pub fn map2<A: Word, B: Word, D: Word>(
        self,
        [d, a, b]: [Slot; 3],
        mask: u32,
        f: impl Fn(A, B) -> D,
    ) {
        let (a, b) = (self.pointer::<A>(a, LANES), self.pointer::<B>(b, LANES));
        let mut out = [D::default(); LANES];
        for (lane, out) in out.iter_mut().enumerate() {
            // SAFETY: as in `lanes`; `lane` is below 32.
            *out = unsafe { f(a.add(lane).read(), b.add(lane).read()) };
        }
        self.write(d, &out, mask);
    }

    /// `d = f(a, b, c)` in the lanes of `mask`.
    #[inline(always)]
    pub fn map3<A: Word, B: Word, C: Word, D: Word>(
        self,
        [d, a, b, c]: [Slot; 4],
        mask: u32,
        f: impl Fn(A, B, C) -> D,
    ) {
        let (a, b) = (self.pointer::<A>(a, LANES), self.pointer::<B>(b, LANES));
        let c = self.pointer::<C>(c, LANES);
        let mut out = [D::default(); LANES];
        for (lane, out) in out.iter_mut().enumerate() {
            // SAFETY: as in `lanes`; `lane` is below 32.
            *out = unsafe { f(a.add(lane).read(), b.add(lane).read(), c.add(lane).read()) };
        }
        self.write(d, &out, mask);
    }

    /// The predicate `f(a, b)`.
    #[inline(always)]
    pub fn test<A: Word>(self, [d, a, b]: [Slot; 3], mask: u32, f: impl Fn(A, A) -> bool) {
        let (a, b) = (self.pointer::<A>(a, LANES), self.pointer::<A>(b, LANES));
        let mut out = [0u8; LANES];
        for (lane, out) in out.iter_mut().enumerate() {
            // SAFETY: as in `lanes`; `lane` is below 32.
            *out = unsafe { f(a.add(lane).read(), b.add(lane).read()) } as u8;
        }
        self.set_mask(d, pack(&out), mask);
    }
}

/// The mask of 32 bytes that are 0 or 1.
#[inline(always)]
fn pack(bytes: &[u8; LANES]) -> u32 {
    let mut mask = 0;
    for (index, eight) in bytes.as_chunks::<8>().0.iter().enumerate() {
        // The product gathers the lowest bits of eight bytes in its highest byte.
        let bits = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        mask |= (bits as u32) << (8 * index);
    }
    mask
}
