//! Calls that may never return, and libraries that may hang: what the checker, the monitor and NCCL's loader wait with.

use std::thread;
use std::time::Duration;

use candle_headroom_environment::patience::{Task, Trusted, Unfinished, load, within};

/// A copy of the process would share memory that is registered with a network adapter or a GPU.
#[test]
fn a_library_is_tried_without_a_fork() {
    use std::cell::Cell;

    thread_local!(static FORKS: Cell<usize> = const { Cell::new(0) });
    extern "C" fn before() {
        FORKS.set(FORKS.get() + 1);
    }
    // SAFETY: a function without arguments that lives as long as the program; it runs in the thread that forks.
    assert_eq!(unsafe { libc::pthread_atfork(Some(before), None, None) }, 0);
    // SAFETY: the child only ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe { libc::_exit(0) }
    }
    // SAFETY: a child of this thread, and no place for its status.
    let ended = unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    assert_eq!(ended, child);
    assert_eq!(FORKS.get(), 1, "a fork is counted");
    // SAFETY: the C library's mathematics, which has no initializers of its own.
    let library = unsafe { Trusted::new("libm.so.6") };
    let loaded = load(&library, Duration::from_secs(60));
    assert!(loaded.is_ok(), "{loaded:?}");
    assert_eq!(FORKS.get(), 1);
}

#[test]
fn work_that_hangs_or_panics_is_left_behind() {
    let (short, limit) = (Duration::from_millis(20), Duration::from_secs(60));
    assert_eq!(within(limit, || 7), Some(7));
    let hanging = Task::start("hangs", || thread::sleep(Duration::MAX));
    assert_eq!(hanging.wait(short), Err(Unfinished::TimedOut));
    let panicking = Task::start("panics", || -> u8 { panic!("on purpose") });
    assert_eq!(panicking.wait(limit), Err(Unfinished::Stopped));
}
