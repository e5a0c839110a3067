//! A sharded optimizer's state: each rank writes its part, if rank 0 sees all of them in its folder, and otherwise all of it goes to rank 0.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::checkpoints::Checkpoints;
use super::document::Fingerprint;
use super::files::{NewFile, sync_folder};
use super::folder::Partial;
use super::name::{Name, file_name};
use super::outcome::is_of_saving;
use super::snapshot::{PART, Parts, State, tensor_files};
use crate::distributed::Group;
use crate::error::{CheckpointError, GroupError, Result};
use crate::files::is_plain;
use crate::optim::{PIECES, StateDict, take_pieces};
use crate::train::Resumable;

/// The name of the call in which ranks meet.
const CALL: &str = "save state";

impl Checkpoints {
    /// Has each rank write its part of the optimizer's state into a file of its own. Where rank 0 does not see all of these, the whole
    /// state comes to it instead. `None` on the other ranks. If one rank cannot write, all have an error of saving.
    pub(super) fn write_parts<T: Resumable + ?Sized>(
        &self,
        group: &Group,
        trainer: &T,
        part: Result<StateDict>,
    ) -> Result<Option<State>> {
        let (rank, folder) = (group.rank(), &self.folder.path);
        let stem = |rank| format!("{PART}{rank:05}-of-{:05}", group.size());
        let name = |rank| format!("{}.safetensors", stem(rank));
        let begun = part.and_then(|mut part| {
            let text = (PIECES, take_pieces(&mut part.metadata)?);
            let tensors = std::mem::take(&mut part.tensors).into_iter().collect();
            let (own, _) = tensor_files(&stem(rank), tensors, u64::MAX, text)?;
            let partial = (rank == 0).then(|| Partial::of_step(folder, trainer.updates()));
            Ok((part, own, partial.transpose()?))
        });
        let say = |(part, _, partial): &(StateDict, _, Option<Partial>)| {
            let place = partial.as_ref().map(|partial| file_name(&partial.path));
            (place, part.metadata.clone())
        };
        let ((mut state, own, partial), all) = agree(group, begun, say)?;
        let others = all.iter().map(|(_, other)| other).enumerate();
        let differences: Vec<_> = others
            .filter(|(_, other)| **other != state.metadata)
            .map(|(other, theirs)| format!("rank {other} has {theirs:?}"))
            .collect();
        if !differences.is_empty() {
            let own = std::iter::once(format!("rank {rank} has {:?}", state.metadata));
            let differences = own.chain(differences).collect();
            return Err(
                GroupError::different("the optimizer's counters or options", differences).into(),
            );
        }

        // An empty file, by which rank 0 sees that this rank's folder is its own.
        let place = all.into_iter().next().and_then(|(place, _)| place);
        let place = place.filter(|place| is_plain(place) && Name::writer(place).is_some());
        let place = place.map(|place| folder.join(place));
        let is_folder = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|it| it.is_dir());
        let place = place.filter(|place| rank > 0 && is_folder(place));
        let file = place.map(|place| Ok((NewFile::create(place.join(name(rank)))?, place)));
        let (file, made) = agree(group, file.transpose(), Option::is_some)?;
        let is_shared = partial.as_ref().is_some_and(|partial| {
            let mut others = made.iter().enumerate().skip(1);
            others.all(|(rank, is_made)| *is_made && partial.holds(&name(rank)))
        });
        let (_, is_shared) = agree(group, Ok(()), |()| is_shared)?;
        if is_shared.first() != Some(&true) {
            drop((own, file));
            let state = trainer.state()?;
            // The ranks have met, so that none has a file open in it.
            drop(partial);
            return Ok((rank == 0).then_some((state, None)));
        }

        let written = file.map(|(mut file, place)| {
            own.iter().try_for_each(|own| own.write(&mut file, &[]))?;
            file.end()?;
            let fingerprint = Fingerprint::new(file.finish()?);
            sync_folder(&place)?;
            Ok(fingerprint)
        });
        let (_, written) = agree(group, written.transpose(), Option::clone)?;
        let Some(partial) = partial else {
            return Ok(None);
        };
        let written = written.into_iter().enumerate();
        let others = written.filter_map(|(rank, written)| Some((name(rank), written?)));
        state.metadata.extend(trainer.progress()?);
        let parts = Parts {
            partial,
            others: others.collect(),
            own,
        };
        Ok(Some((state, Some(parts))))
    }
}

/// Gives all ranks what each says of its work. If one cannot write, all have an error of saving.
fn agree<T, W: Serialize + DeserializeOwned>(
    group: &Group,
    done: Result<T>,
    say: impl FnOnce(&T) -> W,
) -> Result<(T, Vec<W>)> {
    let done = match done {
        Err(error) if !is_of_saving(&error) => Err(error),
        done => Ok(done),
    };
    let say = |done: &Result<T>| done.as_ref().map(say).map_err(ToString::to_string);
    let (done, all) = group.agree(CALL, done, say)?;
    let done = done?;
    let all = all.into_iter().enumerate();
    let all =
        all.map(|(rank, word)| Ok(word.map_err(|reason| CheckpointError::peer(rank, reason))?));
    Ok((done, all.collect::<Result<_>>()?))
}
