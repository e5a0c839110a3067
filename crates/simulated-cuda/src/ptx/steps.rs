//! Instructions that only compute, as closures over their registers.

use super::registers::{Frame, Slot, Word};

/// An instruction without control flow or memory, for the lanes of a mask.
pub type Step = Box<dyn Fn(Frame, u32) + Send + Sync>;

/// `d = f(a)`.
pub fn unary<A: Word, D: Word>(
    slots: [Slot; 2],
    f: impl Fn(A) -> D + Send + Sync + 'static,
) -> Step {
    Box::new(move |frame, mask| frame.map1(slots, mask, &f))
}

/// `d = f(a, b)`.
pub fn binary<A: Word, B: Word, D: Word>(
    slots: [Slot; 3],
    f: impl Fn(A, B) -> D + Send + Sync + 'static,
) -> Step {
    Box::new(move |frame, mask| frame.map2(slots, mask, &f))
}

/// `d = f(a, b, c)`.
pub fn ternary<A: Word, B: Word, C: Word, D: Word>(
    slots: [Slot; 4],
    f: impl Fn(A, B, C) -> D + Send + Sync + 'static,
) -> Step {
    Box::new(move |frame, mask| frame.map3(slots, mask, &f))
}

/// The predicate `f(a, b)`.
pub fn test<A: Word>(slots: [Slot; 3], f: impl Fn(A, A) -> bool + Send + Sync + 'static) -> Step {
    Box::new(move |frame, mask| frame.test(slots, mask, &f))
}

/// A copy of a register `bytes` bytes wide.
pub fn copy(slots: [Slot; 2], bytes: usize) -> Step {
    match bytes {
        1 => unary(slots, |a: u8| a),
        2 => unary(slots, |a: u16| a),
        4 => unary(slots, |a: u32| a),
        _ => unary(slots, |a: u64| a),
    }
}

/// `d = if predicate { a } else { b }`, for registers `bytes` bytes wide.
pub fn select([d, a, b, p]: [Slot; 4], bytes: usize) -> Step {
    fn typed<T: Word>([d, a, b, p]: [Slot; 4]) -> Step {
        Box::new(move |frame: Frame, mask| {
            let chosen = frame.mask(p);
            let mut out: [T; 32] = frame.lanes(b);
            let a: [T; 32] = frame.lanes(a);
            for lane in 0..32 {
                if chosen & (1 << lane) != 0 {
                    out[lane] = a[lane];
                }
            }
            frame.write(d, &out, mask);
        })
    }
    match bytes {
        1 => typed::<u8>([d, a, b, p]),
        2 => typed::<u16>([d, a, b, p]),
        4 => typed::<u32>([d, a, b, p]),
        _ => typed::<u64>([d, a, b, p]),
    }
}

/// A combination of two predicates' masks.
pub fn masks([d, a, b]: [Slot; 3], f: impl Fn(u32, u32) -> u32 + Send + Sync + 'static) -> Step {
    Box::new(move |frame: Frame, mask| frame.set_mask(d, f(frame.mask(a), frame.mask(b)), mask))
}
