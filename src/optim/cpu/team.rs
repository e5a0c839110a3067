//! Threads of this crate, for work that takes the locks of candle's tensors. On candle's pool or rayon's such work could deadlock, because
//! candle's operations hold these locks while they wait for those pools. A rayon pool of its own would allocate in updates.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Barrier, LazyLock, Mutex, MutexGuard, PoisonError};

use candle_core::utils::get_num_threads;

type Work<'a> = dyn Fn() + Sync + 'a;

struct Team {
    /// Locked by the caller whose work runs.
    caller: Mutex<()>,
    work: Mutex<Option<Borrowed>>,
    begin: Barrier,
    end: Barrier,
    has_panicked: AtomicBool,
}

#[derive(Clone, Copy)]
struct Borrowed(*const Work<'static>);

// SAFETY: the closure is `Sync`, and lives until the last thread has finished it, which `together` waits for.
unsafe impl Send for Borrowed {}

static TEAM: LazyLock<Team> = LazyLock::new(|| {
    let wanted = get_num_threads().saturating_sub(1);
    let spawned = (0..wanted).map_while(|index| {
        let thread = std::thread::Builder::new().name(format!("headroom-{index}"));
        thread.spawn(|| serve(&TEAM)).ok()
    });
    // Besides the caller: as many as candle uses, or fewer if the system refuses more.
    let helpers = spawned.count();
    Team {
        caller: Mutex::new(()),
        work: Mutex::new(None),
        begin: Barrier::new(helpers + 1),
        end: Barrier::new(helpers + 1),
        has_panicked: AtomicBool::new(false),
    }
});

/// Starts the threads. This allocates.
pub fn prepare() {
    LazyLock::force(&TEAM);
}

/// Runs `work` on each thread of the team and on this one, and returns when all have finished: false if another thread has panicked.
pub fn together(work: &Work<'_>) -> bool {
    let team = &*TEAM;
    let _alone = lock(&team.caller);
    // SAFETY: the transmute changes the lifetime only, and no thread uses the closure after `end`.
    let borrowed =
        Borrowed(unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) });
    *lock(&team.work) = Some(borrowed);
    team.has_panicked.store(false, Relaxed);
    team.begin.wait();
    let ran = catch_unwind(AssertUnwindSafe(work));
    team.end.wait();
    *lock(&team.work) = None;
    match ran {
        Ok(()) => !team.has_panicked.load(Relaxed),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn serve(team: &Team) {
    loop {
        team.begin.wait();
        let work = *lock(&team.work);
        if let Some(work) = work {
            // SAFETY: `together` keeps the closure alive until this thread has come to `end`.
            let ran = catch_unwind(AssertUnwindSafe(|| unsafe { (*work.0)() }));
            team.has_panicked.fetch_or(ran.is_err(), Relaxed);
        }
        team.end.wait();
    }
}

/// Locks a mutex; its data stays valid if a thread panics.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn each_thread_works_and_a_panic_is_reported() {
        let caller = std::thread::current().id();
        let is_whole = together(&|| {
            // `panic!` would print a message.
            if std::thread::current().id() != caller {
                std::panic::resume_unwind(Box::new("on purpose"));
            }
        });
        assert_eq!(is_whole, get_num_threads() == 1);
        let count = AtomicUsize::new(0);
        assert!(together(&|| {
            count.fetch_add(1, Relaxed);
        }));
        assert_eq!(count.into_inner(), get_num_threads());
    }
}
