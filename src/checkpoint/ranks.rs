//! The ranks that share a run's checkpoints, and after which updates they meet: after each one if a signal or a clock may count, otherwise when one
//! may be due.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::signals::Signal;
use crate::distributed::{Group, Working};
use crate::error::Result;

/// The ranks of a run, which make the same calls. Rank 0 writes; a process without a group is rank 0 of one.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    group: Option<Group>,
    /// A rank waits for signals, for which all ask after each update.
    pub(super) watches: bool,
    /// The first update after which rank 0 may have something to tell.
    pub(super) next: u64,
    /// A signal that all ranks know of.
    pub(super) signal: Option<Signal>,
}

impl Ranks {
    pub(super) fn new(group: Option<Group>) -> Self {
        Self {
            group: group.filter(|group| group.size() > 1),
            ..Self::default()
        }
    }

    /// `None` if there are no others.
    pub(super) fn group(&self) -> Option<&Group> {
        self.group.as_ref()
    }

    /// Whether there are others.
    pub(super) fn are_several(&self) -> bool {
        self.group.is_some()
    }

    /// Whether this one writes.
    pub(super) fn is_writer(&self) -> bool {
        self.group.as_ref().is_none_or(|group| group.rank() == 0)
    }

    /// Whether they meet after this update, on which all agree.
    pub(super) fn meet_after(&self, step: u64) -> bool {
        !self.are_several() || self.watches || step >= self.next
    }

    /// Work on files begins, for which other ranks wait: they do not give this one up while the guard lives.
    pub(super) fn working(&self) -> Option<Working> {
        self.group.as_ref().map(Group::working)
    }

    /// Gives all ranks a word of what each has done. If one has failed, all fail.
    pub(super) fn agree<T, W: Serialize + DeserializeOwned>(
        &self,
        call: &str,
        done: Result<T>,
        word: impl FnOnce(&T) -> W,
    ) -> Result<(T, Vec<W>)> {
        match &self.group {
            Some(group) => group.agree(call, done, word),
            None => done.map(|done| {
                let words = vec![word(&done)];
                (done, words)
            }),
        }
    }
}
