//! Threads of this crate, for work that takes the locks of candle's tensors: on candle's pool or rayon's it could deadlock, because candle's
//! operations hold such locks while they wait for those pools, and a rayon pool of its own would allocate in updates.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

type Work<'a> = dyn Fn() + Sync + 'a;

struct Team {
    /// Held by the caller whose work runs.
    caller: Mutex<()>,
    task: Mutex<Task>,
    begun: Condvar,
    ended: Condvar,
}

struct Task {
    /// Counts pieces of work.
    number: u64,
    work: Option<Borrowed>,
    /// Threads that have not finished it.
    running: usize,
    has_panicked: bool,
}

#[derive(Clone, Copy)]
struct Borrowed(*const Work<'static>);

// SAFETY: the closure is `Sync`, and lives until the last thread has finished it, which `together` waits for.
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

/// The number of threads besides the caller: as many as candle uses, or fewer if the system refuses more.
static THREADS: LazyLock<usize> = LazyLock::new(|| {
    let wanted = candle_core::utils::get_num_threads().saturating_sub(1);
    let spawned = (0..wanted).map_while(|index| {
        let thread = std::thread::Builder::new().name(format!("headroom-{index}"));
        thread.spawn(serve).ok()
    });
    spawned.count()
});

/// Starts the threads. This allocates.
pub fn prepare() {
    LazyLock::force(&THREADS);
}

/// Runs `work` on each thread of the team and on this one, and returns when all have finished: false if another thread has panicked.
pub fn together(work: &Work<'_>) -> bool {
    let _alone = lock(&TEAM.caller);
    // SAFETY: the transmute changes the lifetime only, and `Wait` ends after the last use.
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

/// Waits for the other threads, even if the caller's own part panics.
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

/// The loop of each thread of the team.
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
            // SAFETY: `running` counts this thread, and `together` waits for it before the closure ends.
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
    fn a_panic_is_reported() {
        let caller = std::thread::current().id();
        let is_whole = together(&|| {
            // `panic!` would print a message.
            if std::thread::current().id() != caller {
                std::panic::resume_unwind(Box::new("on purpose"));
            }
        });
        assert_eq!(is_whole, *THREADS == 0);
        assert!(together(&|| ()));
    }
}
