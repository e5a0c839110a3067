//! Threads of this crate's own, for work that waits for the locks of candle's tensors.
//!
//! candle's pool is not for that: its operations hold the locks of what they read and then wait for the pool, so whoever holds the
//! pool and waits for such a lock waits for ever.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

type Work<'a> = dyn Fn() + Sync + 'a;

struct Team {
    /// One piece of work at a time.
    caller: Mutex<()>,
    task: Mutex<Task>,
    begun: Condvar,
    ended: Condvar,
}

struct Task {
    /// Each piece of work has its own.
    number: u64,
    work: Option<Borrowed>,
    /// Threads that have not come to its end.
    running: usize,
    has_panicked: bool,
}

#[derive(Clone, Copy)]
struct Borrowed(*const Work<'static>);

// SAFETY: what it points to may be called from any thread, and lives until `together` has seen the last one come back.
unsafe impl Send for Borrowed {}

static TEAM: Team = Team {
    caller: Mutex::new(()),
    task: Mutex::new(Task {
        number: 0,
        work: None,
        running: 0,
        has_panicked: false,
    }),
    begun: Condvar::new(),
    ended: Condvar::new(),
};

/// How many threads there are besides the caller: as many as candle would take, or fewer if the system gives no more.
static THREADS: LazyLock<usize> = LazyLock::new(|| {
    let wanted = candle_core::utils::get_num_threads().saturating_sub(1);
    let spawned = (0..wanted).map_while(|index| {
        let thread = std::thread::Builder::new().name(format!("headroom-{index}"));
        thread.spawn(serve).ok()
    });
    spawned.count()
});

/// Starts the threads, which allocates.
pub fn prepare() {
    LazyLock::force(&THREADS);
}

/// Runs `work` on each thread of the team and on this one, and returns when all have come to its end; whether none of the others
/// has panicked.
pub fn together(work: &Work<'_>) -> bool {
    let _alone = lock(&TEAM.caller);
    // SAFETY: only the lifetime is dropped, and `Wait` does not let this function end before nobody has it any more.
    let borrowed =
        Borrowed(unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) });
    let mut task = lock(&TEAM.task);
    task.number += 1;
    task.work = Some(borrowed);
    task.running = *THREADS;
    task.has_panicked = false;
    drop(task);
    let wait = Wait;
    TEAM.begun.notify_all();
    work();
    drop(wait);
    !lock(&TEAM.task).has_panicked
}

/// Waits for the others, even where the caller's own part panics.
struct Wait;

impl Drop for Wait {
    fn drop(&mut self) {
        let mut task = lock(&TEAM.task);
        while task.running > 0 {
            task = (TEAM.ended.wait(task)).unwrap_or_else(PoisonError::into_inner);
        }
        task.work = None;
    }
}

/// What each thread of the team does, for ever.
fn serve() {
    let mut done = 0;
    loop {
        let mut task = lock(&TEAM.task);
        while task.number == done {
            task = (TEAM.begun.wait(task)).unwrap_or_else(PoisonError::into_inner);
        }
        done = task.number;
        let work = task.work;
        drop(task);
        let ran = work.map_or(Ok(()), |work| {
            // SAFETY: `together` waits for this thread, which is counted in `running`, before what it points to ends.
            catch_unwind(AssertUnwindSafe(|| unsafe { (*work.0)() }))
        });
        let mut task = lock(&TEAM.task);
        task.has_panicked |= ran.is_err();
        task.running -= 1;
        if task.running == 0 {
            TEAM.ended.notify_one();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn each_thread_does_its_part_and_callers_take_turns() {
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let count = AtomicUsize::new(0);
                        assert!(together(&|| {
                            count.fetch_add(1, Ordering::Relaxed);
                        }));
                        assert_eq!(count.into_inner(), *THREADS + 1);
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_is_told() {
        let caller = std::thread::current().id();
        let is_whole = together(&|| {
            // Without the hook's message.
            if std::thread::current().id() != caller {
                std::panic::resume_unwind(Box::new("on purpose"));
            }
        });
        assert_eq!(is_whole, *THREADS == 0);
        assert!(together(&|| ()));
    }
}
