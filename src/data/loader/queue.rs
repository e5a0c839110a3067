//! Batches on their way from the workers to training, which takes them in order.
//!
//! Workers begin another one while its number, the bytes that are ready and being made (each as large as the largest so far), and the memory's limit
//! allow it; what training waits for is begun in any case. Where the loader moves, what was begun before is dropped when it is finished. The lock is
//! free while batches are made and dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use candle_core::Device;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::jobs::{Job, Jobs};
use super::produce::{Done, Made, Produce};
use crate::batch::Division;
use crate::data::Tensors;
use crate::data::stage::Stage;
use crate::memory::DeviceMemory;

/// How often a worker looks whether the host's memory has room again.
const LOOK: Duration = Duration::from_millis(20);

/// How long training looks for a batch before it sleeps.
const BRIEFLY: Duration = Duration::from_micros(50);

/// What is read ahead.
#[derive(Debug, Clone)]
pub(super) struct Ahead {
    /// The number of threads that read.
    pub(super) workers: usize,
    /// `None` for as many as the number of workers asks for.
    pub(super) batches: Option<usize>,
    pub(super) bytes: u64,
    pub(super) memory: Option<DeviceMemory>,
    /// Where batches go.
    pub(super) device: Option<Device>,
}

impl Ahead {
    /// Batches that may be begun before they are wanted.
    fn batches(&self) -> u64 {
        self.batches.unwrap_or((2 * self.workers).max(4)) as u64
    }

    /// Whether so many bytes that are ready, and so many that are being made, are not too many.
    fn has_room(&self, ready: u64, making: u64) -> bool {
        let fits = |memory: &DeviceMemory| {
            let now = memory.reading();
            let known = now.in_use.zip(now.limit);
            known.is_none_or(|(in_use, limit)| in_use.saturating_add(making) <= limit)
        };
        ready.saturating_add(making) <= self.bytes && self.memory.as_ref().is_none_or(fits)
    }
}

/// The batches between the workers and the training thread.
pub(super) struct Queue<B> {
    state: Mutex<State<B>>,
    /// Something was taken, or the loader moved or ended.
    room: Condvar,
    /// Something was made.
    made: Condvar,
    is_stopped: AtomicBool,
    /// Jobs that were finished.
    finished: AtomicU64,
    produce: Box<dyn Produce<B>>,
    stage: Arc<Stage>,
    pub(super) ahead: Ahead,
}

struct State<B> {
    jobs: Jobs,
    /// The number of the next job, and of the one that the training thread takes next.
    next: u64,
    wanted: u64,
    /// By the number of the job. Boxed, because the list has room for several.
    ready: Vec<(u64, Box<Done<B>>)>,
    /// The number of the job after the last.
    end: Option<u64>,
    making: u64,
    ready_bytes: u64,
    /// Of the largest batch so far.
    largest: Option<u64>,
    /// Raised when the loader moves: what was begun before is dropped.
    generation: u64,
}

impl<B: Tensors> Queue<B> {
    pub(super) fn new(
        jobs: Jobs,
        produce: Box<dyn Produce<B>>,
        ahead: Ahead,
        stage: Arc<Stage>,
    ) -> Arc<Self> {
        let state = State {
            jobs,
            next: 0,
            wanted: 0,
            ready: Vec::new(),
            end: None,
            making: 0,
            ready_bytes: 0,
            largest: None,
            generation: 0,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            room: Condvar::new(),
            made: Condvar::new(),
            is_stopped: AtomicBool::new(false),
            finished: AtomicU64::new(0),
            produce,
            stage,
            ahead,
        })
    }

    /// What a worker does until the loader is dropped.
    pub(super) fn work(&self) {
        while let Some((number, generation, job)) = self.begin() {
            let done = self.make(job);
            self.finish(number, generation, done);
        }
    }

    /// Waits until there is room for another batch; `None` if the loader was dropped.
    fn begin(&self) -> Option<(u64, u64, Job)> {
        let mut state = self.state.lock();
        loop {
            if self.is_stopped() {
                return None;
            }
            if self.has_room(&state)
                && let Some(begun) = state.begin()
            {
                return Some(begun);
            }
            if state.end.is_some() {
                self.made.notify_all();
            }
            match self.ahead.memory {
                // Memory returns without a word.
                Some(_) => {
                    self.room.wait_for(&mut state, LOOK);
                }
                None => self.room.wait(&mut state),
            }
        }
    }

    fn has_room(&self, state: &State<B>) -> bool {
        if state.end.is_some() {
            return false;
        }
        if state.next == state.wanted {
            return true; // what training waits for
        }
        let Some(largest) = state.largest else {
            return false;
        };
        let making = largest.saturating_mul(state.making + 1);
        state.next - state.wanted < self.ahead.batches()
            && self.ahead.has_room(state.ready_bytes, making)
    }

    fn make(&self, job: Job) -> Done<B> {
        Done::make(job, &*self.produce, &self.stage, &|| self.is_stopped())
    }

    fn finish(&self, number: u64, generation: u64, done: Done<B>) {
        let mut state = self.state.lock();
        state.making -= 1;
        if generation == state.generation {
            match &done.made {
                Ok(Made::Batch { .. }) => {
                    state.ready_bytes += done.bytes;
                    state.largest = state.largest.max(Some(done.bytes));
                }
                Ok(Made::EndOfEpoch) => {
                    // A stream has one worker, so no later job was begun.
                    state.jobs.go_to((done.job.epoch + 1, 0, 0));
                }
                _ => {}
            }
            state.ready.push((number, Box::new(done)));
        } else {
            // Dropping a batch may run the user's code.
            MutexGuard::unlocked(&mut state, || drop(done));
        }
        drop(state);
        self.finished.fetch_add(1, Release);
        self.made.notify_all();
        self.room.notify_all();
    }

    /// Goes on from another place, with batches that are divided so. What was read ahead is dropped.
    pub(super) fn move_to(&self, next: (u64, usize, usize), division: Division) {
        let mut state = self.state.lock();
        state.generation += 1;
        state.jobs.move_to(next, division);
        (state.wanted, state.end, state.ready_bytes) = (state.next, None, 0);
        let dropped = std::mem::take(&mut state.ready);
        drop(state);
        drop(dropped);
        self.room.notify_all();
    }

    /// The number and the bytes of the batches that are ready.
    pub(super) fn ready(&self) -> (usize, u64) {
        let state = self.state.lock();
        (state.ready.len(), state.ready_bytes)
    }

    /// The next batch, if it is ready. It counts as ready until [`hand_out`](Self::hand_out).
    pub(super) fn take_ready(&self) -> Option<Done<B>> {
        self.state.lock().take()
    }

    /// Goes on to the batch after one that was taken.
    pub(super) fn hand_out(&self, done: &Done<B>) {
        let mut state = self.state.lock();
        state.wanted += 1;
        if let Ok(Made::Batch { .. }) = done.made {
            state.ready_bytes -= done.bytes;
        }
        drop(state);
        self.room.notify_all();
    }

    /// The next batch, made on this thread if there are no workers; `None` after the last epoch.
    pub(super) fn take(&self, has_workers: bool) -> Option<Done<B>> {
        let mut state = self.state.lock();
        let mut has_looked = false;
        loop {
            if let Some(done) = state.take() {
                return Some(done);
            }
            if state.end.is_some_and(|end| state.wanted >= end) {
                return None;
            }
            match has_workers {
                // A batch that comes at once is not worth to sleep for, which takes longer than small batches do.
                true if !has_looked => {
                    has_looked = true;
                    let before = self.finished.load(Acquire);
                    MutexGuard::unlocked(&mut state, || self.look_for_more_than(before));
                }
                true => self.made.wait(&mut state),
                false => {
                    if let Some((number, generation, job)) = state.begin() {
                        let done = MutexGuard::unlocked(&mut state, || self.make(job));
                        MutexGuard::unlocked(&mut state, || self.finish(number, generation, done));
                    }
                }
            }
        }
    }

    fn look_for_more_than(&self, finished: u64) {
        let began = Instant::now();
        while self.finished.load(Acquire) == finished && began.elapsed() < BRIEFLY {
            // Where a core is wanted by more threads, a worker may need this one.
            thread::yield_now();
        }
    }
}

impl<B> Queue<B> {
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Relaxed);
        // A worker that has just seen that it is not stopped waits for `room` before the lock is free.
        drop(self.state.lock());
        self.room.notify_all();
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Relaxed)
    }
}

impl<B> State<B> {
    /// The batch that is wanted, if it is ready.
    fn take(&mut self) -> Option<Done<B>> {
        let mut ready = self.ready.iter();
        let at = ready.position(|(number, _)| *number == self.wanted)?;
        Some(*self.ready.swap_remove(at).1)
    }

    /// `None` if there are no more jobs, which `end` then says.
    fn begin(&mut self) -> Option<(u64, u64, Job)> {
        let Some(job) = self.jobs.next() else {
            self.end = Some(self.next);
            return None;
        };
        let number = self.next;
        self.next += 1;
        self.making += 1;
        Some((number, self.generation, job))
    }
}
