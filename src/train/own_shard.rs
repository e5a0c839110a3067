use super::slots::Slots;
use crate::optim::Shard;

/// The elements that this rank sums.
#[derive(Debug)]
pub(super) struct OwnShard {
    pub(super) elements: Shard,
    /// The fingerprint of the parameters.
    pub(super) of: u32,
}

impl OwnShard {
    pub(super) fn new(slots: &Slots, rank: usize) -> Self {
        Self {
            elements: slots.shard(rank),
            of: slots.fingerprint(),
        }
    }
}
