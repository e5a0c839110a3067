//! What ranks tell each other before an update, and whether they can make it together: the same parameters, the same number of updates, the
//! same batches, and now and then the same values, by which a rank that has diverged is named.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use crate::distributed::Group;
use crate::error::{Error, GroupError, Result};

/// The name of the call in which ranks meet.
pub(super) const CALL: &str = "update";

/// What a rank that can update tells the others before.
///
/// What is the same on all ranks that agree comes first, because rank 0 answers all of them with it once. What only this rank knows comes last
/// and has short names, because each rank gets that of all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Status {
    /// Number of updates so far.
    pub(super) updates: u64,
    /// Of the names, shapes and types that are trained.
    pub(super) trained: u32,
    /// Of the gradients that are still awaited.
    pub(super) awaited: u32,
    /// Of the batches of loaders; `None` if they are another rank's.
    pub(super) data: Option<u32>,
    /// Of the values of all parameters, where they are compared.
    pub(super) values: Option<u32>,
    /// A bit for each parameter that has received a gradient.
    pub(super) filled: Vec<u64>,
    #[serde(rename = "n")]
    pub(super) samples: usize,
    #[serde(rename = "w")]
    pub(super) weight: f64,
    /// The seconds that the samples took.
    #[serde(rename = "c")]
    pub(super) computed: f32,
    /// Seconds since the exchange before.
    #[serde(rename = "e")]
    pub(super) elapsed: f32,
    /// The seconds that a unit of cost took, while ranks are measured; `None` also if this update does not count.
    #[serde(rename = "p")]
    pub(super) pace: Option<f64>,
}

impl Status {
    pub(super) fn is_filled(&self, slot: usize) -> bool {
        let bits = self.filled.get(slot / 64);
        bits.is_some_and(|bits| bits >> (slot % 64) & 1 == 1)
    }
}

/// A bit for each of these.
pub(super) fn bits(all: impl Iterator<Item = bool>) -> Vec<u64> {
    let mut words = Vec::new();
    for (at, is_set) in all.enumerate() {
        if at % 64 == 0 {
            words.push(0);
        }
        if let Some(word) = words.last_mut() {
            *word |= u64::from(is_set) << (at % 64);
        }
    }
    words
}

/// Fails if the ranks cannot update together.
pub(super) fn check(statuses: &[Status]) -> Result<()> {
    let Some(first) = statuses.first() else {
        return Ok(());
    };
    let mut differences = Vec::new();
    for (rank, status) in statuses.iter().enumerate().skip(1) {
        let (theirs, ours) = (status.updates, first.updates);
        if theirs != ours {
            differences.push(format!(
                "rank {rank} has made {theirs} updates, rank 0 {ours}"
            ));
        }
        if status.trained != first.trained {
            differences.push(format!("rank {rank} trains other parameters than rank 0 now: freeze and thaw the same on all ranks"));
        }
        if status.awaited != first.awaited {
            differences.push(format!("rank {rank} awaits other parameters' first gradients than rank 0: load the same state on all ranks"));
        }
    }
    if !differences.is_empty() {
        return Err(GroupError::different("what they train", differences).into());
    }
    diverged(statuses, first.updates).map_or(Ok(()), Err)
}

/// The ranks whose parameters are not those of the majority.
fn diverged(statuses: &[Status], updates: u64) -> Option<Error> {
    let first = statuses.first()?.values;
    // Where some ranks have just loaded state, all compare in the next update.
    if statuses.iter().any(|status| status.values.is_none())
        || statuses.iter().all(|status| status.values == first)
    {
        return None;
    }
    let count = |values: &Option<u32>| {
        statuses
            .iter()
            .filter(|status| status.values == *values)
            .count()
    };
    // In a tie rank 0's.
    let most = statuses.iter().map(|status| status.values);
    let right = most.fold(first, |best, values| match count(&values) > count(&best) {
        true => values,
        false => best,
    });
    let ranks = statuses.iter().enumerate();
    let ranks = ranks.filter(|(_, status)| status.values != right);
    let ranks = ranks.map(|(rank, _)| rank).collect();
    Some(GroupError::Diverged { ranks, updates }.into())
}

/// How far this rank's update has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The other ranks have its status message.
    pub(super) has_spoken: AtomicBool,
    /// None of them waits for anything more.
    pub(super) is_over: AtomicBool,
}

/// A step in progress. The other ranks wait for this one's status message, and then for the end of the exchange: if the step ends before, also by a
/// panic, it notifies them.
#[derive(Debug)]
pub(in crate::train) struct Turn {
    group: Group,
    progress: Arc<Progress>,
}

impl Turn {
    pub(super) fn new(group: &Group, progress: &Arc<Progress>) -> Self {
        progress.has_spoken.store(false, Ordering::Relaxed);
        progress.is_over.store(false, Ordering::Relaxed);
        Self {
            group: group.clone(),
            progress: Arc::clone(progress),
        }
    }

    /// Ends the step with this error.
    pub(in crate::train) fn fail(self, error: &Error) {
        self.tell(error.to_string());
    }

    fn tell(&self, reason: String) {
        if self.progress.has_spoken.swap(true, Ordering::Relaxed) {
            return;
        }
        self.group.refuse(CALL, reason);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !std::thread::panicking() || self.progress.is_over.load(Ordering::Relaxed) {
            return;
        }
        if self.progress.has_spoken.load(Ordering::Relaxed) {
            // The others wait for gradients or parameters that do not come any more.
            let reason = "it panicked after its status message, in the exchange or the update";
            self.group.control().fail(reason);
        }
        self.tell("it panicked".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statuses(values: &[u32]) -> Vec<Status> {
        let status = |values| Status {
            values: Some(values),
            ..Status::default()
        };
        values.iter().copied().map(status).collect()
    }

    #[test]
    fn the_minority_has_diverged_and_in_a_tie_all_but_rank_0s() {
        for (values, expected) in [
            (&[5, 5, 5][..], None),
            (&[5, 5, 7], Some(vec![2])),
            (&[7, 5, 5], Some(vec![0])),
            (&[5, 7], Some(vec![1])),
            (&[1, 2, 3, 4], Some(vec![1, 2, 3])),
        ] {
            let found = match check(&statuses(values)) {
                Err(Error::Group(error)) => match *error {
                    GroupError::Diverged { ranks, .. } => Some(ranks),
                    _ => None,
                },
                _ => None,
            };
            assert_eq!(found, expected, "{values:?}");
        }
    }

    #[test]
    fn bits_of_many_slots() {
        let is_set = |slot: usize| slot % 3 == 1;
        let status = Status {
            filled: bits((0..200).map(is_set)),
            ..Status::default()
        };
        assert!((0..200).all(|slot| status.is_filled(slot) == is_set(slot)));
        assert!(!status.is_filled(10_000));
    }

    /// Of a model with 300 parameters, while ranks are measured.
    #[test]
    fn messages_of_ranks_that_agree_differ_by_few_bytes_at_their_end() {
        let message = |rank: u16| {
            let unequal = 1. + f64::from(rank) / 7.;
            let status = Status {
                updates: 100_000,
                trained: u32::MAX,
                awaited: u32::MAX,
                data: Some(u32::MAX),
                values: Some(u32::MAX),
                filled: bits((0..300).map(|_| true)),
                samples: 1000 + usize::from(rank),
                weight: unequal,
                computed: unequal as f32,
                elapsed: unequal as f32,
                pace: Some(unequal),
            };
            let mut bytes = Vec::new();
            ciborium::into_writer(&status, &mut bytes).unwrap();
            bytes
        };
        let (first, other) = (message(0), message(9));
        let alike = first.iter().zip(&other).take_while(|(a, b)| a == b);
        let (alike, all) = (alike.count(), other.len());
        assert!(
            alike > 100 && all - alike <= 40,
            "{alike} of {all} are alike"
        );
    }
}
