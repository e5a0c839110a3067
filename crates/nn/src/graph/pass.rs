//! Tells backward passes apart that are in progress at once.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A backward pass of one thread, or one that began within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass(u64);

thread_local! {
    static PASS: Cell<Pass> = Cell::new(next());
}

fn next() -> Pass {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    Pass(NEXT.fetch_add(1, Relaxed))
}

pub fn current() -> Pass {
    PASS.get()
}

/// Runs a backward pass that begins within another one. Both may reach the same operations.
pub fn within_pass<T>(backward: impl FnOnce() -> T) -> T {
    struct Outer(Pass);
    impl Drop for Outer {
        fn drop(&mut self) {
            PASS.set(self.0);
        }
    }
    let _outer = Outer(PASS.replace(next()));
    backward()
}
