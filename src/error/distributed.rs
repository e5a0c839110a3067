//! What can go wrong between the ranks of a group.

use std::time::Duration;

/// A group of ranks cannot be formed, or cannot go on, in a way that a program can act upon. [`Error::is_group`](super::Error::is_group) has
/// the others.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// Ranks have not joined in time.
    #[error(
        "{} did not join within {waited:?}: check that each of the {size} ranks was started, with the same address of rank 0",
        ranks_text(.ranks)
    )]
    #[non_exhaustive]
    Missing {
        /// The ranks that are missing.
        ranks: Vec<usize>,
        /// The size of the group.
        size: usize,
        /// How long rank 0 waited: the group's timeout.
        waited: Duration,
    },
    /// Another rank could not do its part, and told so. No rank has updated its parameters. The group goes on with the next call.
    #[error("rank {rank} failed in `{call}`: {reason}")]
    #[non_exhaustive]
    PeerFailed {
        /// The rank.
        rank: usize,
        /// What all ranks were doing.
        call: String,
        /// Its error, as text.
        reason: String,
    },
    /// Ranks died, hang, or have left the group. It cannot be used any more: continue from a checkpoint in a new process.
    #[error("{} lost in `{call}`: {reason}; start the job again from its last checkpoint", ranks_text(.ranks))]
    #[non_exhaustive]
    PeerLost {
        /// The ranks, as far as they are known.
        ranks: Vec<usize>,
        /// What this rank was doing.
        call: String,
        /// How it was noticed.
        reason: String,
    },
    /// Models, options or the data of an update differ between the ranks.
    #[error("the ranks differ in {what}: {}", .differences.join("; "))]
    #[non_exhaustive]
    Different {
        /// What has to be the same.
        what: &'static str,
        /// One sentence for each difference.
        differences: Vec<String>,
    },
    /// The parameters of these ranks are no longer those of the others.
    #[error(
        "after {updates} updates the parameters of {} differ from those of the other ranks: continue from a checkpoint, and look for work \
         that differs between ranks, such as a learning rate set on one of them",
        ranks_text(.ranks)
    )]
    #[non_exhaustive]
    Diverged {
        /// The ranks that differ from the majority, or from rank 0 where there is none.
        ranks: Vec<usize>,
        /// Number of updates so far.
        updates: u64,
    },
    /// The group was used after it had failed.
    #[error(
        "the group of ranks has failed before ({0}): continue from a checkpoint in a new process"
    )]
    Broken(String),
    /// The engine failed. The group cannot be used any more.
    #[error("{engine} failed in {operation}: {reason}")]
    #[non_exhaustive]
    Engine {
        /// The engine, with its version.
        engine: String,
        /// The operation.
        operation: &'static str,
        /// The engine's own words.
        reason: String,
    },
    /// Ranks use one GPU, which NCCL does not allow.
    #[error(
        "{} use one GPU ({device}): give each rank its own, as `DeviceMemory::cuda(group.local_rank())` does, and start one rank for each GPU",
        ranks_text(.ranks)
    )]
    #[non_exhaustive]
    SameDevice {
        /// The ranks.
        ranks: Vec<usize>,
        /// The GPU.
        device: String,
    },
}

impl GroupError {
    /// Ranks that differ, with the first of the differences and the number of the others.
    pub(crate) fn different(what: &'static str, mut differences: Vec<String>) -> Self {
        const MOST: usize = 8;
        let hidden = differences.len().saturating_sub(MOST);
        differences.truncate(MOST);
        if hidden > 0 {
            differences.push(format!("and {hidden} more"));
        }
        Self::Different { what, differences }
    }
}

/// `rank 3`, or `ranks 1, 2 and 5`.
fn ranks_text(ranks: &[usize]) -> String {
    let names: Vec<_> = ranks.iter().map(usize::to_string).collect();
    match names.as_slice() {
        [] => "some ranks".to_owned(),
        [only] => format!("rank {only}"),
        [first @ .., last] => format!("ranks {} and {last}", first.join(", ")),
    }
}
