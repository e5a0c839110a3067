//! Batches on their way from the workers to training, which takes them in order.
//!
//! Workers begin another one while its number, the bytes that are ready and being made (each as large as the largest so far), and the memory's limit
//! allow it; what training waits for is begun in any case. Where the loader moves, what was begun before is dropped when it is finished. The lock is
//! free while batches are made and dropped; the costs of a window's samples are asked for under it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use candle_core::Device;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::jobs::{Job, Jobs};
use super::produce::{Made, Produce};
use crate::batch::Division;
use crate::data::stage::{Load, Stage};
use crate::data::{Tensors, caught, tensors};
use crate::error::{Result, invalid};
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
    pub(super) stage: Stage,
    pub(super) ahead: Ahead,
}

/// A job and what was made of it.
pub(super) struct Done<B> {
    pub(super) job: Job,
    pub(super) made: Result<Made<B>>,
    /// The batch's tensors, where they are on their way to a device.
    load: Option<Box<dyn Load>>,
    bytes: u64,
}

struct State<B> {
    jobs: Jobs,
    /// The number of the next job, and of the one that the training thread takes next.
    next: u64,
    wanted: u64,
    /// By the number of the job.
    ready: BTreeMap<u64, Done<B>>,
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
    pub(super) fn new(jobs: Jobs, produce: Box<dyn Produce<B>>, ahead: Ahead) -> Result<Arc<Self>> {
        let stage = Stage::new(ahead.device.clone())?;
        let state = State {
            jobs,
            next: 0,
            wanted: 0,
            ready: BTreeMap::new(),
            end: None,
            making: 0,
            ready_bytes: 0,
            largest: None,
            generation: 0,
        };
        Ok(Arc::new(Self {
            state: Mutex::new(state),
            room: Condvar::new(),
            made: Condvar::new(),
            is_stopped: AtomicBool::new(false),
            finished: AtomicU64::new(0),
            produce,
            stage,
            ahead,
        }))
    }

    /// What a worker does until the loader is dropped.
    pub(super) fn work(&self) {
        while let Some(job) = self.begin() {
            self.finish(self.make(job));
        }
    }

    /// Waits until there is room for another batch; `None` if the loader was dropped.
    fn begin(&self) -> Option<Job> {
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

    /// Makes a batch, and copies it to where the device can fetch it.
    fn make(&self, mut job: Job) -> Done<B> {
        let (mut load, mut bytes) = (None, 0);
        let made = caught(|| {
            if let Some(failed) = job.failed.take() {
                return Err(failed);
            }
            let mut made = self.produce.make(&mut job, &|| self.is_stopped())?;
            if let Made::Batch(batch) = &mut made {
                bytes = tensors::bytes(batch);
                load = self.stage.pin(batch);
            }
            Ok(made)
        });
        let panicked = |message| invalid!(Data, "a loader's worker panicked: {message}");
        let made = made.unwrap_or_else(|message| Err(panicked(message)));
        Done {
            job,
            made,
            load,
            bytes,
        }
    }

    fn finish(&self, done: Done<B>) {
        let mut state = self.state.lock();
        state.making -= 1;
        if done.job.generation == state.generation {
            state.ready_bytes += done.bytes;
            match &done.made {
                Ok(Made::Batch(_)) => state.largest = state.largest.max(Some(done.bytes)),
                // A stream has one worker, so no later job was begun.
                Ok(Made::EndOfEpoch) => state.jobs.go_to((done.job.epoch + 1, 0, 0)),
                _ => {}
            }
            state.ready.insert(done.job.number, done);
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
        state.ready_bytes -= done.bytes;
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
                    if let Some(job) = state.begin() {
                        MutexGuard::unlocked(&mut state, || self.finish(self.make(job)));
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
        self.ready.remove(&self.wanted)
    }

    /// `None` if there are no more jobs, which `end` then says.
    fn begin(&mut self) -> Option<Job> {
        let Some(mut job) = self.jobs.next() else {
            self.end = Some(self.next);
            return None;
        };
        (job.number, job.generation) = (self.next, self.generation);
        self.next += 1;
        self.making += 1;
        Some(job)
    }
}

impl<B: Tensors> Done<B> {
    /// Begins to copy the batch to the device. If that fails, it is tried again when the batch is delivered.
    pub(super) fn depart(&mut self) {
        if let Some(Err(error)) = self.load.as_mut().map(|load| load.depart()) {
            tracing::debug!(%error, "a batch is not copied ahead");
        }
    }

    /// Puts the batch on the device. After an error it can be tried again.
    pub(super) fn deliver(&mut self, stage: &Stage) -> Result<()> {
        match &mut self.made {
            Ok(Made::Batch(batch)) => stage.deliver(batch, &mut self.load),
            _ => Ok(()),
        }
    }
}
