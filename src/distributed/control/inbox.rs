use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::frame::{Frame, Refusal};

/// What the threads that read connections have received.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Calls and answers, by the rank that sent them.
    frames: BTreeMap<usize, VecDeque<Frame>>,
    /// Ranks that left in good health, which matters once they are needed.
    left: Vec<usize>,
    /// Ranks that have given a sign of life.
    alive: Vec<usize>,
    /// Why the group has ended.
    ended: Option<Refusal>,
}

/// What a wait has found.
pub(super) enum Found {
    Frame(Frame),
    /// The group has ended.
    Ended(Refusal),
    /// The rank has left.
    Left,
    TimedOut,
}

impl Inbox {
    /// A frame has arrived. Returns why the group has ended now, if the frame says so.
    pub(super) fn put(&self, rank: usize, frame: Frame) -> Option<Refusal> {
        let mut state = self.state.lock();
        self.changed.notify_all();
        match frame {
            Frame::Leave => state.left.push(rank),
            Frame::Pong => state.alive.push(rank),
            Frame::Refusal(refusal @ Refusal::Lost { .. }) if state.ended.is_none() => {
                state.ended = Some(refusal.clone());
                return Some(refusal);
            }
            Frame::Refusal(Refusal::Lost { .. }) => {}
            frame => state.frames.entry(rank).or_default().push_back(frame),
        }
        None
    }

    /// A connection has ended. Returns why the group has ended now, unless it had before or the rank has left.
    pub(super) fn closed(&self, rank: usize, reason: String) -> Option<Refusal> {
        let mut state = self.state.lock();
        if state.left.contains(&rank) || state.ended.is_some() {
            return None;
        }
        let ranks = vec![rank];
        let refusal = Refusal::Lost { ranks, reason };
        state.ended = Some(refusal.clone());
        self.changed.notify_all();
        Some(refusal)
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

    /// Asks for signs of life by `ask`, and waits for them. Returns the ranks of `asked` that give none.
    pub(super) fn silent(&self, asked: &[usize], until: Instant, ask: impl FnOnce()) -> Vec<usize> {
        self.state.lock().alive.clear();
        ask();
        let mut state = self.state.lock();
        loop {
            let silent = asked.iter().filter(|rank| !state.alive.contains(rank));
            let silent: Vec<_> = silent.copied().collect();
            if silent.is_empty() || self.changed.wait_until(&mut state, until).timed_out() {
                return silent;
            }
        }
    }

    /// Waits for the next frame of this rank.
    pub(super) fn take(&self, rank: usize, until: Instant) -> Found {
        let mut state = self.state.lock();
        loop {
            // A frame that arrived counts even if its sender, or another rank, is lost now.
            let queue = state.frames.get_mut(&rank);
            if let Some(frame) = queue.and_then(VecDeque::pop_front) {
                return Found::Frame(frame);
            }
            if let Some(refusal) = &state.ended {
                return Found::Ended(refusal.clone());
            }
            if state.left.contains(&rank) {
                return Found::Left;
            }
            if self.changed.wait_until(&mut state, until).timed_out() {
                return Found::TimedOut;
            }
        }
    }
}
