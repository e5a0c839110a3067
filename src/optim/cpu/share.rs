//! Threads that share an update: candle's for a large parameter, this crate's team for the small ones, whose locks their work takes. On
//! candle's pool or rayon's such work could deadlock, because candle's operations hold these locks while they wait for those pools. A rayon
//! pool of its own would allocate in updates.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Barrier, LazyLock, Mutex, MutexGuard, PoisonError};

use candle_core::utils::{barrier_pool, get_num_threads};

use super::numbers::{BLOCK, CHUNK, Real, take};

/// Threads share tensors with at least this many elements, as in candle.
pub const SHARED: usize = 64 * 1024;

pub fn is_shared(len: usize) -> bool {
    len >= SHARED
}

/// Calls `work` `units` times on candle's own threads, which stay awake between its operations; it must not take candle's locks. A panic
/// of a thread is passed on to the caller. Nothing is allocated.
pub fn share(units: usize, work: &(dyn Fn() + Sync)) {
    let run = |units: Range<usize>| units.for_each(|_| work());
    match units {
        0 | 1 => run(0..units),
        _ => barrier_pool().execute_chunked(units, run),
    }
}

/// Distributes stretches of a slice, each with the index of its first element.
pub fn in_stretches<T: Send>(
    slice: &mut [T],
    stretch: usize,
    is_shared: bool,
    work: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    if !is_shared {
        return work(0, slice);
    }
    let units = slice.len().div_ceil(stretch);
    // parking_lot's mutex would allocate when a thread waits for the first time.
    let rest = Mutex::new((0, slice));
    share(units, &|| {
        let mut guard = lock(&rest);
        let (next, rest) = &mut *guard;
        let (start, head) = (*next, take(rest, stretch));
        *next += head.len();
        drop(guard);
        work(start, head);
    });
}

/// Returns the sum of the squares of `len` values that `read` fetches from an index on, always added in the same order.
pub fn squares<C: Real>(
    partials: &mut [f64],
    len: usize,
    read: &(dyn Fn(usize, &mut [C]) + Sync),
) -> f64 {
    let partials = partials.get_mut(..len.div_ceil(CHUNK)).unwrap_or_default();
    in_stretches(partials, 1, is_shared(len), &|first, partials| {
        for (index, partial) in (first..).zip(partials) {
            let start = index * CHUNK;
            *partial = 0.;
            in_blocks(start..len.min(start + CHUNK), &mut |start, block| {
                read(start, block);
                *partial += sum_of_squares(block);
            });
        }
    });
    sum_of_chunks(partials)
}

/// Adds up the sums of chunks: those of a group, and then those of the groups, which a GPU adds up at once.
pub fn sum_of_chunks(partials: &[f64]) -> f64 {
    const GROUP: usize = 128;
    partials
        .chunks(GROUP)
        .map(|group| group.iter().sum::<f64>())
        .sum()
}

/// Splits a range into blocks that fit on the stack, and runs `work` with the start and the buffer of each.
pub fn in_blocks<C: Real>(range: Range<usize>, work: &mut dyn FnMut(usize, &mut [C])) {
    let mut block = [C::default(); BLOCK];
    for start in range.clone().step_by(BLOCK) {
        let count = (range.end - start).min(BLOCK);
        work(start, block.get_mut(..count).unwrap_or_default());
    }
}

/// The sum of squares, in f64 along eight lanes, so that it can be vectorised.
fn sum_of_squares<C: Real>(values: &[C]) -> f64 {
    let mut lanes = [0.; 8];
    let chunks = values.chunks_exact(lanes.len());
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value.to_f64() * value.to_f64();
        }
    }
    let rest = rest.iter().map(|value| value.to_f64() * value.to_f64());
    lanes.iter().sum::<f64>() + rest.sum::<f64>()
}

type Work<'a> = dyn Fn() + Sync + 'a;

struct Team {
    /// Locked by the caller whose work runs.
    caller: Mutex<()>,
    /// Not `'static`: it lives from `begin` to `end`.
    work: Mutex<Option<&'static Work<'static>>>,
    begin: Barrier,
    end: Barrier,
    has_panicked: AtomicBool,
}

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
    // SAFETY: the transmute changes the lifetimes only. `serve` has no copy of the reference after `end`, which is waited for below whatever
    // the closure does, and the team's own is taken away then.
    let lent = unsafe { std::mem::transmute::<&Work<'_>, &'static Work<'static>>(work) };
    *lock(&team.work) = Some(lent);
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
            let ran = catch_unwind(AssertUnwindSafe(work));
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
