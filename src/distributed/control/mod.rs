//! Small messages between all ranks, over TCP connections that form a tree with rank 0 as its root ([`tree`]).
//!
//! A rank waits for the calls of its branches, adds its own, and sends them to its parent as one. Rank 0's answer goes the same way back. What all
//! ranks give alike is sent once over each connection, so where ranks agree a message is short.
//!
//! Engines that move large buffers notice a dead rank late or never. Here a thread reads each connection, so the end of a process is seen at
//! once by the ranks beside it in the tree. They tell it to those beside them, also where these wait for an engine ([`Control::check`]). A rank
//! that hangs, through which nobody hears anything, is named by all ranks beside it, each by its own clock.

mod frame;
mod inbox;
mod link;
mod rendezvous;
mod tree;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use crate::error::{Error, GroupError, Result, failed_before, invalid};
use frame::{Frame, MOST, Refusal};
pub(crate) use inbox::Deadline;
use inbox::Inbox;
pub(crate) use link::Working;
use link::{Life, Link, tell};
pub(crate) use rendezvous::Meeting;
pub(crate) use tree::FAN_OUT;
use tree::Place;

/// How much longer a rank waits for what another one finds out, such as who is missing, before it blames that one.
const GRACE: Duration = Duration::from_millis(1500);
/// How long a rank may take to give a sign of life; less than the others wait for what is found out then.
const PATIENCE: Duration = Duration::from_millis(500);

const OTHER_CALLS: &str = "it has made another number of calls";

/// The bytes of the parts of a long message that go through a rank at a time. While they come, a wait for the next call of their sender goes on.
const PART: usize = 64 << 20;

/// What ranks call, with how many one after another do, and their bytes.
type Calls = (Vec<(String, usize)>, Vec<Vec<u8>>);

/// What the ranks of a group tell each other.
#[derive(Debug)]
pub(crate) struct Control {
    rank: usize,
    size: usize,
    timeout: Duration,
    inbox: Arc<Inbox>,
    place: Place,
    /// To the parent, if there is one, and to the children.
    links: Arc<RwLock<Vec<Link>>>,
    life: Life,
    /// Number of calls so far. Held during a call, so that two threads do not mix theirs.
    calls: Mutex<u64>,
    has_left: AtomicBool,
    /// The caller has seen why the group has ended.
    is_reported: AtomicBool,
    /// An error that other ranks may not know of.
    failed: Mutex<Option<String>>,
}

impl Control {
    /// A group of one.
    pub(crate) fn alone(timeout: Duration) -> Self {
        Self::new(0, 1, Place::of(0, 1, FAN_OUT), timeout)
    }

    fn new(rank: usize, size: usize, place: Place, timeout: Duration) -> Self {
        Self {
            rank,
            size,
            timeout,
            place,
            inbox: Arc::new(Inbox::new(timeout)),
            links: Arc::default(),
            life: Life::default(),
            calls: Mutex::new(0),
            has_left: AtomicBool::new(false),
            is_reported: AtomicBool::new(false),
            failed: Mutex::new(None),
        }
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Gives all ranks what each rank gave, in the order of ranks. All ranks have to make the same calls.
    pub(crate) fn gather(&self, what: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.call(what, bytes, true)
    }

    /// Gives rank 0 what each rank gave, of any length, in the order of ranks, and the others nothing.
    pub(crate) fn gather_at_first(&self, what: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lengths = self.gather(what, &(bytes.len() as u64).to_le_bytes())?;
        let lengths = lengths
            .iter()
            .filter_map(|it| it.as_slice().try_into().ok());
        let most = lengths.map(u64::from_le_bytes).max().unwrap_or(0);
        let mut all = vec![Vec::new(); if self.rank == 0 { self.size } else { 0 }];
        // A rank below rank 0 passes on those of a branch.
        let part = (PART / self.size.div_ceil(FAN_OUT)).max(1);
        let mut parts = bytes.chunks(part);
        for _ in 0..most.div_ceil(part as u64) {
            let parts = self.call(what, parts.next().unwrap_or_default(), false)?;
            for (into, part) in all.iter_mut().zip(parts) {
                into.extend(part);
            }
        }
        Ok(all)
    }

    /// Tells the others that this rank works for all of them, so that they wait beyond the timeout.
    pub(crate) fn working(&self) -> Working {
        self.life.working()
    }

    /// Returns the time, of which only that counts in which this process runs and waits.
    pub(super) fn now(&self) -> Duration {
        self.inbox.now()
    }

    fn call(&self, what: &str, bytes: &[u8], is_for_all: bool) -> Result<Vec<Vec<u8>>> {
        let mut calls = self.calls.lock();
        self.refuse_if_broken(what)?;
        if self.size == 1 {
            return Ok(vec![bytes.to_vec()]);
        }
        if bytes.len() > MOST {
            let given = bytes.len();
            let reason = format!(
                "it gave {given} bytes in `{what}`, of which each rank may give {MOST}: exchange tensors by `sum` or `broadcast`"
            );
            self.fail(&reason);
            return Err(candle_core::Error::Msg(reason).into());
        }
        *calls += 1;
        let answer = self.exchange(*calls, what, bytes, is_for_all);
        answer.map_err(|refusal| self.error(refusal, what))
    }

    /// Whether a rank is known to be lost.
    #[cfg(feature = "mpi")]
    pub(crate) fn has_ended(&self) -> bool {
        self.inbox.ended().is_some()
    }

    /// Fails if a rank is known to be lost.
    pub(crate) fn check(&self, what: &str) -> Result<()> {
        match self.inbox.ended() {
            Some(refusal) => Err(self.error(refusal, what)),
            None => Ok(()),
        }
    }

    /// Ends the group for all ranks: this one can no longer do its part.
    pub(crate) fn fail(&self, reason: &str) {
        (self.failed.lock()).get_or_insert_with(|| reason.to_owned());
        self.end_without(vec![self.rank], reason);
    }

    /// This rank comes to its next exchange with the others by an engine.
    pub(super) fn begin_exchange(&self) {
        self.inbox.exchanges.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the group: something did not end in time. The ranks that give no sign of life are at fault, else those that have not come to it: each
    /// rank asks those beside it in the tree, and where these answer it waits for what they find out.
    pub(crate) fn time_out(&self, what: &str) -> Error {
        let asked: Vec<_> = self.links.read().iter().map(|link| link.rank).collect();
        let ask = || self.tell(&Frame::Ping);
        let (ranks, more) = match self.inbox.silent(&asked, PATIENCE, ask) {
            (silent, _) if !silent.is_empty() => (silent, ", and no sign of life"),
            (_, behind) if !behind.is_empty() => (behind, ", and it has not begun"),
            _ => (Vec::new(), ""),
        };
        if ranks.is_empty() && asked.len() + 1 < self.size {
            self.inbox.wait_for_end(GRACE);
        }
        let timeout = self.timeout;
        let refusal = self.end_without(ranks, format!("no end of it within {timeout:?}{more}"));
        self.error(refusal, what)
    }

    /// Tells the others that this rank makes no more calls.
    pub(crate) fn leave(&self) {
        if self.has_left.swap(true, Ordering::Relaxed) {
            return;
        }
        let frame = match self.inbox.ended() {
            // The thread that heard of it may not have told all others yet.
            Some(refusal) => Frame::Refusal(refusal),
            // A rank that unwinds may have left others waiting for an engine.
            None if std::thread::panicking() => Frame::Refusal(Refusal::Lost {
                ranks: vec![self.rank],
                reason: "it panicked".to_owned(),
            }),
            None => Frame::Leave,
        };
        self.tell(&frame);
    }

    /// Waits until those connected to this rank have left too, or the group has ended.
    #[cfg(feature = "mpi")]
    pub(crate) fn wait_for_others(&self) {
        let others: Vec<_> = self.links.read().iter().map(|link| link.rank).collect();
        self.inbox.wait_for_leave(&others);
    }

    /// Fails if the group has ended: with the reason if the caller has not seen it yet.
    fn refuse_if_broken(&self, what: &str) -> Result<()> {
        if let Some(reason) = self.failed.lock().clone() {
            return Err(failed_before(&reason));
        }
        let Some(refusal) = self.inbox.ended() else {
            return Ok(());
        };
        let is_known = self.is_reported.load(Ordering::Relaxed);
        let error = self.error(refusal, what);
        match is_known {
            true => Err(failed_before(&error)),
            false => Err(error),
        }
    }

    /// The error for a call that got no answer.
    fn error(&self, refusal: Refusal, what: &str) -> Error {
        match refusal {
            Refusal::Lost { ranks, mut reason } => {
                if !self.is_reported.swap(true, Ordering::Relaxed) {
                    // The thread that heard of it may not have told all others yet, and this process may exit at once.
                    let (ranks, reason) = (ranks.clone(), reason.clone());
                    self.tell(&Frame::Refusal(Refusal::Lost { ranks, reason }));
                }
                if ranks == [self.rank] && self.failed.lock().is_none() {
                    reason = format!("the other ranks gave this one up: {reason}");
                }
                let call = what.to_owned();
                GroupError::PeerLost {
                    ranks,
                    call,
                    reason,
                }
                .into()
            }
            Refusal::DifferentCalls(calls) => {
                let calls = calls.iter().enumerate();
                let calls = calls.map(|(rank, call)| format!("rank {rank} `{call}`"));
                invalid!(
                    Group,
                    "the ranks called different methods: {}; each rank has to make the same calls in the same order",
                    calls.collect::<Vec<_>>().join(", ")
                )
            }
        }
    }

    /// Remembers why the group has ended, and tells the others. Returns the first reason.
    fn end(&self, refusal: Refusal) -> Refusal {
        let refusal = self.inbox.end(refusal);
        self.tell(&Frame::Refusal(refusal.clone()));
        refusal
    }

    /// Ends the group because these ranks are lost. Returns the first reason.
    fn end_without(&self, ranks: Vec<usize>, reason: impl Into<String>) -> Refusal {
        let reason = reason.into();
        self.end(Refusal::Lost { ranks, reason })
    }

    /// Waits for the next frame of this rank; `None` if it does not come in time.
    fn next(
        &self,
        rank: usize,
        since: Duration,
        limit: Duration,
    ) -> Result<Option<Frame>, Refusal> {
        let taken = self.inbox.take(rank, since, limit);
        taken.map_err(|ended| {
            let reason = "it has left the group: its program ended or dropped the group";
            ended.unwrap_or_else(|| self.end_without(vec![rank], reason))
        })
    }

    /// Sends a frame to all connected ranks.
    fn tell(&self, frame: &Frame) {
        tell(self.links.read().iter(), frame);
    }

    /// Sends the call of this rank's branches to its parent, and the answer to its children.
    fn exchange(
        &self,
        number: u64,
        what: &str,
        bytes: &[u8],
        is_for_all: bool,
    ) -> Result<Vec<Vec<u8>>, Refusal> {
        // The parent and the children, who may have called long before, hear that this rank waits too.
        let _working = (!self.place.branches.is_empty()).then(|| self.working());
        let (calls, mut parts) = self.collect(number, what, bytes)?;
        let mut own = None;
        let answer = match self.place.parent {
            Some(parent) => {
                let call = Frame::Call {
                    number,
                    calls,
                    parts,
                };
                self.ask(parent, &call)?
            }
            None if calls.len() > 1 => {
                let each = |(call, ranks)| std::iter::repeat_n(call, ranks);
                let calls = calls.into_iter().flat_map(each).collect();
                Frame::Refusal(Refusal::DifferentCalls(calls))
            }
            None => {
                own = (!is_for_all).then(|| std::mem::take(&mut parts));
                Frame::Answer { number, all: parts }
            }
        };
        let links = self.links.read();
        let children = links
            .iter()
            .filter(|link| Some(link.rank) != self.place.parent);
        tell(children, &answer);
        drop(links);
        let expected = if is_for_all { self.size } else { 0 };
        match answer {
            Frame::Answer {
                number: theirs,
                all,
            } if theirs == number && all.len() == expected => Ok(own.unwrap_or(all)),
            Frame::Refusal(refusal) => Err(refusal),
            _ => Err(self.end_without(self.place.parent.into_iter().collect(), OTHER_CALLS)),
        }
    }

    /// Waits for the calls of the children. Returns those of this rank and of all ranks of its branches.
    fn collect(&self, number: u64, what: &str, bytes: &[u8]) -> Result<Calls, Refusal> {
        let since = self.now();
        let (mut all, mut parts) = (vec![(what.to_owned(), 1)], vec![bytes.to_vec()]);
        let mut missing = Vec::new();
        for branch in &self.place.branches {
            let child = branch.start;
            match self.next(child, since, self.timeout)? {
                Some(Frame::Call {
                    number: theirs,
                    calls,
                    parts: more,
                }) if theirs == number && more.len() == branch.len() => {
                    parts.extend(more);
                    for (call, ranks) in calls {
                        match all.last_mut() {
                            Some((last, count)) if *last == call => *count += ranks,
                            _ => all.push((call, ranks)),
                        }
                    }
                }
                Some(_) => return Err(self.end_without(vec![child], OTHER_CALLS)),
                None => missing.push(child),
            }
        }
        if missing.is_empty() {
            return Ok((all, parts));
        }
        let reason = format!("no call of it within {:?}", self.timeout);
        Err(self.end_without(missing, reason))
    }

    /// Sends a call to the parent, and waits for the answer.
    fn ask(&self, parent: usize, call: &Frame) -> Result<Frame, Refusal> {
        let links = self.links.read();
        tell(links.iter().filter(|link| link.rank == parent), call);
        drop(links);
        let answer = self.next(parent, self.now(), self.timeout + GRACE)?;
        answer.ok_or_else(|| {
            let reason = format!("no answer within {:?}", self.timeout);
            self.end_without(vec![parent], reason)
        })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.leave();
        self.links.write().clear();
    }
}
