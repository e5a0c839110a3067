//! What has arrived from other ranks, and how long a rank waits for it.
//!
//! A frame that has come counts even where its sender is lost afterwards. The first reason for which the group ends is the one that counts. A wait
//! goes on as long as bytes of the rank come, and time in which this process is suspended hardly counts.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::frame::{Frame, Refusal};

/// The most calls or answers of a rank that wait to be read. A rank makes one call at a time.
const MOST: usize = 4;

/// What the threads that read connections have received.
#[derive(Debug)]
pub(super) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
    /// How many exchanges by an engine this rank has come to.
    pub(super) exchanges: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// Those beside this rank in the tree.
    peers: BTreeMap<usize, Peer>,
    /// Ranks that left in good health, which matters once they are needed.
    left: Vec<usize>,
    /// Why the group has ended.
    ended: Option<Refusal>,
    clock: Clock,
}

#[derive(Debug, Default)]
struct Peer {
    /// Calls and answers that wait to be read.
    frames: VecDeque<Frame>,
    /// When bytes came last.
    heard: Option<Duration>,
    /// How many exchanges it had come to when it was asked last, once it has answered.
    exchanges: Option<u64>,
}

impl State {
    /// Those of these ranks for which this holds, or of which nothing has come.
    fn those(&self, asked: &[usize], is_it: impl Fn(&Peer) -> bool) -> Vec<usize> {
        let asked = asked.iter().copied();
        let those = asked.filter(|rank| self.peers.get(rank).is_none_or(&is_it));
        those.collect()
    }

    /// Ends the group for this reason, and returns it, unless the group has ended before.
    fn end(&mut self, refusal: Refusal) -> Option<Refusal> {
        if self.ended.is_some() {
            return None;
        }
        self.ended = Some(refusal.clone());
        Some(refusal)
    }
}

impl Inbox {
    /// For waits of about this long.
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            state: Mutex::new(State {
                peers: BTreeMap::new(),
                left: Vec::new(),
                ended: None,
                clock: Clock::new(timeout),
            }),
            changed: Condvar::new(),
            exchanges: AtomicU64::new(0),
        }
    }

    /// Returns the time, of which only that counts in which this process runs and waits.
    pub(super) fn now(&self) -> Duration {
        self.state.lock().clock.now()
    }

    /// Bytes of this rank have come.
    pub(super) fn hear(&self, rank: usize) {
        let mut state = self.state.lock();
        let now = state.clock.now();
        state.peers.entry(rank).or_default().heard = Some(now);
    }

    /// A frame has arrived. Returns why the group has ended now, if the frame says so.
    pub(super) fn put(&self, rank: usize, frame: Frame) -> Option<Refusal> {
        let mut state = self.state.lock();
        self.changed.notify_all();
        match frame {
            Frame::Leave => state.left.push(rank),
            Frame::Pong { exchanges } => {
                if let Some(peer) = state.peers.get_mut(&rank) {
                    peer.exchanges = Some(exchanges);
                }
            }
            // That it came is all that it says.
            Frame::Working => {}
            Frame::Refusal(refusal @ Refusal::Lost { .. }) => return state.end(refusal),
            frame => {
                let frames = &mut state.peers.entry(rank).or_default().frames;
                if frames.len() == MOST {
                    let ranks = vec![rank];
                    let reason = "it sends more than it was asked for".to_owned();
                    return state.end(Refusal::Lost { ranks, reason });
                }
                frames.push_back(frame);
            }
        }
        None
    }

    /// A connection has ended. Returns why the group has ended now, unless it had before or the rank has left.
    pub(super) fn closed(&self, rank: usize, reason: String) -> Option<Refusal> {
        let mut state = self.state.lock();
        if state.left.contains(&rank) {
            return None;
        }
        self.changed.notify_all();
        let ranks = vec![rank];
        state.end(Refusal::Lost { ranks, reason })
    }

    /// Ends the group for this reason, unless it has ended before. Returns the first reason.
    pub(super) fn end(&self, refusal: Refusal) -> Refusal {
        let mut state = self.state.lock();
        let first = state.ended.get_or_insert(refusal).clone();
        self.changed.notify_all();
        first
    }

    pub(super) fn ended(&self) -> Option<Refusal> {
        self.state.lock().ended.clone()
    }

    /// Asks for signs of life by `ask`, and waits for them for at most `limit`. Returns the ranks of `asked` that give none, and those that have
    /// come to fewer exchanges than this one.
    pub(super) fn silent(
        &self,
        asked: &[usize],
        limit: Duration,
        ask: impl FnOnce(),
    ) -> (Vec<usize>, Vec<usize>) {
        let (since, own) = (self.now(), self.exchanges.load(Ordering::Relaxed));
        (self.state.lock().peers.values_mut()).for_each(|peer| peer.exchanges = None);
        ask();
        let mut state = self.state.lock();
        // Other bytes of a rank may come before its answer.
        let has_time =
            |state: &mut State| state.ended.is_none() && state.clock.now() < since + limit;
        while !state
            .those(asked, |peer| peer.exchanges.is_none())
            .is_empty()
            && has_time(&mut state)
        {
            let pause = state.clock.pause;
            self.changed.wait_for(&mut state, pause);
        }
        let silent = state.those(asked, |peer| peer.heard.is_none_or(|at| at < since));
        let behind = |peer: &Peer| peer.exchanges.is_some_and(|theirs| theirs < own);
        (silent, state.those(asked, behind))
    }

    /// Waits until the group has ended, for at most `limit`.
    pub(super) fn wait_for_end(&self, limit: Duration) {
        let since = self.now();
        let mut state = self.state.lock();
        while state.ended.is_none() && state.clock.now() < since + limit {
            let pause = state.clock.pause;
            self.changed.wait_for(&mut state, pause);
        }
    }

    /// Waits until all of these have left, or the group has ended.
    #[cfg(feature = "mpi")]
    pub(super) fn wait_for_leave(&self, others: &[usize]) {
        let mut state = self.state.lock();
        while state.ended.is_none() && others.iter().any(|rank| !state.left.contains(rank)) {
            self.changed.wait(&mut state);
        }
    }

    /// Waits for the next frame of this rank, for at most `limit` from `since` on, or since bytes of this rank came last. Returns `None` if
    /// none came in time. The error is why the group has ended, or `None` if the rank has left.
    pub(super) fn take(
        &self,
        rank: usize,
        since: Duration,
        limit: Duration,
    ) -> Result<Option<Frame>, Option<Refusal>> {
        let mut state = self.state.lock();
        loop {
            // A frame that arrived counts even if its sender, or another rank, is lost now.
            let peer = state.peers.entry(rank).or_default();
            let heard = peer.heard.unwrap_or_default();
            if let Some(frame) = peer.frames.pop_front() {
                return Ok(Some(frame));
            }
            if state.ended.is_some() || state.left.contains(&rank) {
                return Err(state.ended.clone());
            }
            let Some(left) = (since.max(heard) + limit).checked_sub(state.clock.now()) else {
                return Ok(None);
            };
            let pause = state.clock.pause.min(left);
            self.changed.wait_for(&mut state, pause);
        }
    }
}

/// Time in which this process runs and looks at the clock.
///
/// A gap between two looks counts for at most a part of the timeout: a job whose processes were all suspended has not used up its patience when
/// they continue.
#[derive(Debug)]
struct Clock {
    time: Duration,
    looked: Instant,
    /// How long to wait between two looks.
    pause: Duration,
    /// The most that counts of the time between two looks.
    most: Duration,
}

impl Clock {
    /// A clock for waits of about this long.
    fn new(timeout: Duration) -> Self {
        let pause = (timeout / 16).min(Duration::from_millis(100));
        Self {
            time: Duration::ZERO,
            looked: Instant::now(),
            pause,
            most: pause * 4,
        }
    }

    fn now(&mut self) -> Duration {
        let now = Instant::now();
        self.time += (now - self.looked).min(self.most);
        self.looked = now;
        self.time
    }
}

/// The end of the time in which all ranks have to join. A thread looks at its clock, because looking up a name, or connecting to a machine
/// that does not answer, takes long between two looks of the caller's.
#[derive(Debug)]
pub(crate) struct Deadline {
    clock: Arc<Mutex<Clock>>,
    timeout: Duration,
    /// Ends the thread when it is dropped.
    _looking: Sender<()>,
}

impl Deadline {
    pub(crate) fn new(timeout: Duration) -> Self {
        let clock = Clock::new(timeout);
        let pause = clock.pause.max(Duration::from_millis(1));
        let clock = Arc::new(Mutex::new(clock));
        let (sender, ended) = mpsc::channel();
        let looked_at = Arc::clone(&clock);
        let thread = thread::Builder::new().name("headroom-clock".to_owned());
        let started = thread.spawn(move || {
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                looked_at.lock().now();
            }
        });
        if let Err(error) = started {
            tracing::warn!(%error, "time in which this process is suspended counts while ranks join");
            clock.lock().most = Duration::from_secs(30);
        }
        Self {
            clock,
            timeout,
            _looking: sender,
        }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the time that is left, or `None` if it is over by `grace`.
    pub(crate) fn left(&mut self, grace: Duration) -> Option<Duration> {
        let left = (self.timeout + grace).checked_sub(self.clock.lock().now())?;
        Some(left).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_gap_counts_for_a_part_of_the_timeout() {
        let mut clock = Clock::new(Duration::from_millis(400));
        for _ in 0..3 {
            clock.looked -= Duration::from_secs(10);
            clock.now();
        }
        assert_eq!(clock.time, Duration::from_millis(300));
    }

    /// Also if the timeout is short, a process that was suspended while ranks join goes on.
    #[test]
    fn joining_counts_what_takes_long_and_not_a_suspension() {
        let timeout = Duration::from_secs(2);
        let mut deadline = Deadline::new(timeout);
        deadline.clock.lock().looked -= Duration::from_secs(3600);
        let left = deadline.left(Duration::ZERO).unwrap();
        assert!(left >= timeout - Duration::from_millis(600), "{left:?}");
        // A name that is looked up, between two looks.
        thread::sleep(Duration::from_millis(900));
        let after = deadline.left(Duration::ZERO).unwrap();
        let counted = left - after;
        assert!(counted >= Duration::from_millis(700), "{counted:?}");
        thread::sleep(timeout);
        assert_eq!(deadline.left(Duration::ZERO), None);
        assert!(deadline.left(Duration::from_secs(20)).is_some());
    }
}
