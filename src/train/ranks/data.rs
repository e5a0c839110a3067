//! Which batches of which loaders a rank has in an update. Ranks compare checksums of it, and exchange the texts only where these differ, for
//! an error that names each difference.

use serde::{Deserialize, Serialize};

use crate::batch::{Division, Fingerprint, Origin, Place};
use crate::distributed::Group;
use crate::error::{GroupError, Result};

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
        Err(GroupError::different("their data, so nothing was updated", differences).into())
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
