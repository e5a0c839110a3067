//! What ranks tell each other before an update, and whether they can make it together: the same parameters, the same number of updates, the
//! same batches, and now and then the same values, by which a rank that has diverged is named.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use crate::batch::{Division, Fingerprint, Origin, Place};
use crate::distributed::Group;
use crate::error::{Error, Result, different, invalid, ranks_text};

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
        return Err(different("what they train", differences));
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
    let ranks: Vec<_> = ranks.map(|(rank, _)| rank).collect();
    Some(invalid!(
        Group,
        "after {updates} updates the parameters of {} differ from those of the other ranks: continue from a checkpoint, and look for \
         work that differs between ranks, such as a learning rate set on one of them",
        ranks_text(&ranks)
    ))
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

    /// Ends the step for this reason, unless the others know how it ended.
    pub(in crate::train) fn fail(&self, reason: String) {
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
        self.fail("it panicked".to_owned());
    }
}

/// The batches of loaders in an update of this rank. Batches from elsewhere leave no trace here.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(in crate::train) struct Data(Vec<Given>);

/// This rank's part of a loader's batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Given {
    loader: String,
    /// The rank for which it was read, with the number of ranks, and which batch it is; `None` for data of the rank's own.
    batch: Option<((usize, usize), Batch)>,
}

/// A batch's loader, its place there, its number of samples, and how they are divided; `None` for equal parts.
type Batch = (Fingerprint, Place, usize, Option<Division>);

impl Data {
    pub(in crate::train) fn push(&mut self, origin: &Origin<'_>) {
        let batch = (
            origin.position.data.clone(),
            origin.place,
            origin.samples,
            origin.position.division.clone(),
        );
        let (loader, batch) = match origin.rank {
            Some(rank) => (origin.loader.to_owned(), Some((rank, batch))),
            None => (format!("{} (own data)", origin.loader), None),
        };
        self.extend(Self(vec![Given { loader, batch }]));
    }

    pub(in crate::train) fn extend(&mut self, later: Self) {
        for given in later.0 {
            // Ranks may have different numbers of batches of their own.
            if given.batch.is_some() || !self.0.contains(&given) {
                self.0.push(given);
            }
        }
    }

    /// A checksum that is equal on all ranks if each has its own part of the same batches; `None` if this rank has another one's. Data of the
    /// rank's own do not count: a rank may have come to their end before the others.
    pub(super) fn checksum(&self, group: &Group) -> Result<Option<u32>> {
        let own = (group.rank(), group.size());
        let mut batches = Vec::new();
        for (loader, rank, batch) in self.shared() {
            match *rank == own {
                true => batches.push((loader, batch)),
                false => return Ok(None),
            }
        }
        let bytes = serde_json::to_vec(&batches).map_err(candle_core::Error::wrap)?;
        Ok(Some(crc32fast::hash(&bytes)))
    }

    /// The batches of which each rank has a part.
    fn shared(&self) -> impl Iterator<Item = (&String, &(usize, usize), &Batch)> {
        self.0.iter().filter_map(|Given { loader, batch }| {
            let (rank, batch) = batch.as_ref()?;
            Some((loader, rank, batch))
        })
    }

    fn names(&self) -> Vec<&String> {
        self.0.iter().map(|given| &given.loader).collect()
    }

    /// Fails unless all checksums are there and equal, with what differs, which the ranks exchange then.
    pub(super) fn compare(
        &self,
        group: &Group,
        mut checksums: impl Iterator<Item = Option<u32>>,
    ) -> Result<()> {
        let first = checksums.next().flatten();
        if first.is_some() && checksums.all(|checksum| checksum == first) {
            return Ok(());
        }
        let all = group.collect_in("compare loaders", vec![self.clone()])?;
        let differences = differences(&all);
        Err(different("their data, so nothing was updated", differences))
    }
}

/// A sentence for each difference between the ranks, and for each rank that reads for another one.
fn differences(all: &[Data]) -> Vec<String> {
    let (size, mut differences) = (all.len(), Vec::new());
    for (own, data) in all.iter().enumerate() {
        for (loader, (rank, ranks), _) in data.shared() {
            if (*rank, *ranks) != (own, size) {
                differences.push(format!(
                    "rank {own} of {size} reads `{loader}` as rank {rank} of {ranks}: build the loader with `.group(&group)`, or with \
                     `.own_data()` if each rank has data of its own"
                ));
            }
        }
    }
    for (rank, data) in all.iter().enumerate().skip(1) {
        let Some(first) = all.first() else { break };
        let names =
            |data: &Data| -> Vec<_> { data.shared().map(|(name, ..)| name.clone()).collect() };
        if names(data) != names(first) {
            let (theirs, others) = (data.names(), first.names());
            differences.push(format!(
                "rank {rank} has batches of loaders {theirs:?}, rank 0 of {others:?}"
            ));
            continue;
        }
        for ((loader, _, theirs), (_, _, first)) in data.shared().zip(first.shared()) {
            differences.extend(between(loader, rank, theirs, first));
        }
    }
    differences.dedup();
    differences
}

/// What differs from rank 0's batch of the same loader.
fn between(loader: &str, rank: usize, theirs: &Batch, first: &Batch) -> Vec<String> {
    let ((data, place, samples, parts), (other, at, others, first_parts)) = (theirs, first);
    let fields = data.differences(other).map(|(what, theirs, first)| {
        format!("rank {rank} reads `{loader}` with {what} {theirs}, rank 0 with {first}")
    });
    let mut differences: Vec<_> = fields.collect();
    // Places of other batches mean nothing.
    if differences.is_empty() && (place, samples) != (at, others) {
        differences.push(format!(
            "rank {rank} is at {place} of `{loader}`, with {samples} samples, rank 0 at {at}, with {others}: a batch that failed cannot \
             be left out on one rank alone: build the loader with `skip_failures`, or end the job and resume it"
        ));
    } else if differences.is_empty() && parts != first_parts {
        let text = |parts: &Option<Division>| match parts {
            Some(parts) => format!("parts {:?}", parts.parts(*samples)),
            None => "equal parts".to_owned(),
        };
        differences.push(format!(
            "rank {rank} cuts {place} of `{loader}` into {}, rank 0 into {}: divide loaders, and take each batch, between the same \
             steps on all ranks",
            text(parts),
            text(first_parts)
        ));
    }
    differences
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
            (&[5, 5, 7], Some("rank 2")),
            (&[7, 5, 5], Some("rank 0")),
            (&[5, 7], Some("rank 1")),
            (&[1, 2, 3, 4], Some("ranks 1, 2 and 3")),
        ] {
            let found = check(&statuses(values)).err();
            let text = "after 0 updates the parameters of {} differ from those of the other ranks";
            let expected = expected.map(|ranks| text.replace("{}", ranks));
            let found = found.map(|error| error.to_string());
            let found = found.as_ref().and_then(|found| found.split(':').next());
            assert_eq!(found, expected.as_deref(), "{values:?}");
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

    /// What a rank sends before an update of a model with so many parameters, while ranks are measured.
    fn message(parameters: usize, rank: usize) -> Vec<u8> {
        let unequal = 1. + rank as f64 / 7.;
        let status = Status {
            updates: 100_000,
            trained: u32::MAX,
            awaited: u32::MAX,
            data: Some(u32::MAX),
            values: Some(u32::MAX),
            filled: bits((0..parameters).map(|_| true)),
            samples: 1000 + rank,
            weight: unequal,
            computed: unequal as f32,
            elapsed: unequal as f32,
            pace: Some(unequal),
        };
        let mut bytes = Vec::new();
        ciborium::into_writer(&Ok::<_, String>(vec![status]), &mut bytes).unwrap();
        bytes
    }

    /// Only what all ranks say alike grows with the model, by 9 bytes for 64 parameters. benches/scale/constants.rs has these numbers.
    #[test]
    fn messages_of_ranks_that_agree_differ_by_few_bytes_at_their_end() {
        for parameters in [10, 300, 10_000] {
            let (first, other) = (message(parameters, 0), message(parameters, 9));
            let alike = first.iter().zip(&other).take_while(|(a, b)| a == b);
            let (alike, all) = (alike.count(), other.len());
            let bits = message(parameters, 0).len() - message(0, 0).len();
            assert!(
                bits <= 9 * parameters.div_ceil(64) + 1,
                "{parameters}: {bits}"
            );
            assert_eq!((alike - bits, all - alike), (79, 37), "{parameters}");
        }
    }
}
