//! Continuing a run: rank 0 reads the newest intact checkpoint and sends what it holds, and the others change what they have once it has loaded it.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use candle_core::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

use super::checkpoint::Checkpoint;
use super::checkpoints::Checkpoints;
use super::document::Document;
use super::folder::{Name, file_name};
use super::load::{Named, check_memory};
use super::outcome::Resumed;
#[cfg(feature = "data")]
use crate::batch::Consumer;
#[cfg(feature = "data")]
use crate::data::{Loader, Tensors};
use crate::distributed::Group;
use crate::error::{Error, Result, Skipped, different};
use crate::optim::{Own, PIECES, Parameter, StateDict};
use crate::train::Resumable;

/// The name of the call in which ranks meet.
const CALL: &str = "resume";

/// What rank 0 sends of a checkpoint before its tensors.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Head {
    name: String,
    skipped: Vec<(String, String)>,
    document: Document,
    /// Rank 0's parameters, as text.
    model: Vec<String>,
    state_bytes: u64,
}

impl Checkpoints {
    /// Continues from the newest intact checkpoint: sets the model's parameters in place, and the trainer's state, and returns the loader at
    /// the batch that comes next. Without a checkpoint the loader begins anew. [`resumed`](Self::resumed) tells which of the two it is.
    ///
    /// The returned loader borrows nothing. It is an iterator over the batches that are left, and gives them
    /// [epoch by epoch](Loader::epochs) for two nested loops:
    ///
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// use candle_headroom::checkpoint::Checkpoints;
    /// use candle_headroom::data::{Loader, TensorDataset, stack};
    /// use candle_headroom::{AdaptiveTrainer, Sgd};
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path().join("run-7");
    /// fn train(folder: &std::path::Path) -> candle_headroom::Result<u64> {
    ///     let w = Var::new(&[1f32], &Device::Cpu)?;
    ///     let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
    ///     let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    ///     let numbers = TensorDataset::new(Tensor::arange(0f32, 6., &Device::Cpu)?)?;
    ///     let loader = Loader::builder(numbers, stack).batch(2).shuffle(7).epochs(2).build()?;
    ///
    ///     let mut checkpoints = Checkpoints::builder(folder).every_updates(1).open()?;
    ///     let mut loader = checkpoints.resume(&mut trainer, loader)?;
    ///     if let Some(resumed) = checkpoints.resumed() {
    ///         println!("{resumed}"); // resumed at step 2 from run-7/step-000000002
    ///     }
    ///     for epoch in loader.epochs() {
    ///         println!("epoch {}", epoch.number());
    ///         for batch in epoch {
    ///             let report = trainer.step(batch, |x, _| x.broadcast_mul(&w)?.sqr()?.mean_all())?;
    ///             if checkpoints.after(&report, &trainer)?.is_break() {
    ///                 return Ok(trainer.updates());
    ///             }
    ///         }
    ///     }
    ///     checkpoints.finish()?;
    ///     Ok(trainer.updates())
    /// }
    /// assert_eq!([train(&folder)?, train(&folder)?], [6, 6]); // nothing was left to do
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// Call [`Loader::resume`] for further loaders of the run. Without a loader call [`resume_trainer`](Self::resume_trainer).
    ///
    /// # Errors
    /// Those of [`resume_trainer`](Self::resume_trainer), and those of [`Loader::resume`], after which the trainer has the saved state.
    #[cfg(feature = "data")]
    pub fn resume<T, B>(&mut self, trainer: &mut T, mut loader: Loader<B>) -> Result<Loader<B>>
    where
        T: Resumable + Consumer + ?Sized,
        B: Tensors + Send + 'static,
    {
        self.resume_trainer(trainer)?;
        let continued = loader.resume(trainer)?;
        if let (Some(resumed), Some(continued)) = (&mut self.resumed, continued) {
            resumed.changes = continued.changes;
        }
        Ok(loader)
    }

    /// Continues from the newest intact checkpoint as [`resume`](Self::resume) does, for a trainer that is given batches from elsewhere than a
    /// loader. Returns `None` if the folder holds no checkpoint. The saved values replace those that were [set](Self::set) before.
    ///
    /// Only the run's writer can do so. In a [group](super::CheckpointsBuilder::group) rank 0 reads the checkpoint and sends it to the others,
    /// which need no access to the folder.
    ///
    /// ```
    /// # use candle_headroom::checkpoint::Checkpoints;
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
    /// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
    /// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// Checkpoints::builder(&folder).open()?.save_now(&trainer)?;
    /// w.set(&w.zeros_like()?)?; // as in a new process
    /// let mut checkpoints = Checkpoints::builder(&folder).open()?;
    /// assert!(checkpoints.resume_trainer(&mut trainer)?.is_some());
    /// assert_eq!(w.to_vec1::<f32>()?, [1., 1.]);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Checkpoint::latest`] and [`Checkpoint::resume`].
    ///
    /// In a group also [`PeerFailed`](crate::error::GroupError::PeerFailed) with another rank's error, an [error of the group](Error::is_group)
    /// if the ranks' models differ, and [`PeerLost`](crate::error::GroupError::PeerLost). No trainer has changed then, unless a
    /// rank was lost, or reading failed or memory ran out on one while the checkpoint was loaded: an update that follows is an error.
    pub fn resume_trainer<T: Resumable + ?Sized>(
        &mut self,
        trainer: &mut T,
    ) -> Result<Option<Resumed>> {
        self.settle();
        let _working = self.working();
        let latest = match self.is_writer() {
            true => Checkpoint::latest(&self.folder.path),
            false => Ok(None),
        };
        let loaded = match &self.group {
            Some(group) => self.load_together(group, latest, trainer)?,
            None => match latest? {
                Some(latest) => {
                    latest.resume(trainer)?;
                    Some(Head::new(&latest))
                }
                None => None,
            },
        };
        let Some(head) = loaded else {
            return Ok(None);
        };
        let folder = &self.folder.path;
        let (step, path) = (head.document.step, folder.join(&head.name));
        let skipped = head.skipped.iter();
        let skipped = skipped.map(|(name, problem)| Skipped::new(&folder.join(name), problem));
        let skipped = skipped.collect();
        let names = head.skipped.iter();
        self.settings.keep.damaged = names.filter_map(|(name, _)| Name::parse(name)).collect();
        self.metrics.resumed(step, &head.document.metrics);
        self.values = head.document.values;
        self.schedule.started(step);
        self.unread = None;
        self.last = Some(path.clone());
        self.resumed = Some(Resumed {
            step,
            path,
            skipped,
            changes: Vec::new(),
        });
        Ok(self.resumed.clone())
    }

    /// Loads rank 0's checkpoint on all ranks. The others change only when rank 0 has loaded it, so they keep no copy of what they had.
    fn load_together<T: Resumable + ?Sized>(
        &self,
        group: &Group,
        latest: Result<Option<Checkpoint>>,
        trainer: &mut T,
    ) -> Result<Option<Head>> {
        let part = match trainer.part() {
            // It cannot be read then, and this rank takes the whole state.
            Err(Error::UpdateInterrupted(_)) => Ok(None),
            part => part,
        };
        let part = part.and_then(|part| part.map(|mut part| Own::of(&mut part)).transpose());
        let (part, _) = group.agree(CALL, part, |_| ())?;
        let read = |latest: Checkpoint| {
            let state_bytes = latest.check(trainer, |bytes| ranks_here(bytes, group, &part))?;
            let mut head = Head::new(&latest);
            (head.model, head.state_bytes) = (described(trainer), state_bytes);
            Ok((latest, head))
        };
        let read = latest.and_then(|latest| latest.map(read).transpose());
        let word = |read: &Option<(_, Head)>| read.as_ref().map(|(_, head)| head.clone());
        let (own, words) = group.agree(CALL, read, word)?;
        let Some(head) = words.into_iter().next().flatten() else {
            return Ok(None);
        };
        let ready = match own {
            Some(_) => Ok(()),
            None => head.check(group, trainer, &part, &self.folder.path.join(&head.name)),
        };
        group.agree(CALL, ready, |()| ())?;
        let own = own.map(|(own, _)| own);
        let state = head.exchange(group, trainer, own.as_ref(), part)?;
        let agree = |loaded: Result<()>| group.agree(CALL, loaded, |()| ()).map(drop);
        match &own {
            Some(own) => own.load(trainer, &state, agree)?,
            None => agree(Ok(()))?,
        }
        for Parameter { var, .. } in trainer.model() {
            send(group, Ok(var.as_detached_tensor()))?;
        }
        agree(match own {
            Some(_) => Ok(()),
            None => trainer.load_state(&state),
        })?;
        Ok(Some(head))
    }
}

impl Head {
    fn new(checkpoint: &Checkpoint) -> Self {
        let skipped = checkpoint.skipped().iter();
        Self {
            name: file_name(checkpoint.path()),
            skipped: skipped
                .map(|skipped| (file_name(&skipped.path), skipped.problem.clone()))
                .collect(),
            document: checkpoint.document.clone(),
            model: Vec::new(),
            state_bytes: 0,
        }
    }

    /// Checks that the model is as rank 0's, and that there is memory for the state on each rank of this machine.
    fn check<T: Resumable + ?Sized>(
        &self,
        group: &Group,
        trainer: &T,
        part: &Option<Own>,
        path: &Path,
    ) -> Result<()> {
        let own = described(trainer);
        if own == self.model {
            return check_memory(path, ranks_here(self.state_bytes, group, part));
        }
        let pairs = own
            .iter()
            .zip(&self.model)
            .filter(|(own, first)| own != first);
        let pairs = pairs.map(|(own, first)| format!("{own} here, {first} on rank 0"));
        let mut differences: Vec<_> = pairs.collect();
        let (here, there) = (own.len(), self.model.len());
        if here != there {
            differences.push(format!("{here} parameters here, {there} on rank 0"));
        }
        Err(different(
            "their models, so nothing was loaded",
            differences,
        ))
    }

    /// Returns the state that rank 0 reads from its checkpoint on all ranks, of which each takes its part as it comes.
    fn exchange<T: Resumable + ?Sized>(
        &self,
        group: &Group,
        trainer: &T,
        from: Option<&Checkpoint>,
        part: Option<Own>,
    ) -> Result<StateDict> {
        // Where parameters are the ranks exchange tensors. For others in the host's memory there may be no way.
        let model = trainer.model();
        let device = model
            .first()
            .map_or(&Device::Cpu, |first| first.var.device());
        let mut reading = from.map(Checkpoint::state_in_pieces).transpose();
        let (mut tensors, mut kept_all) = (BTreeMap::new(), Ok(()));
        loop {
            let next = match &mut reading {
                Ok(Some(pieces)) => pieces.next().transpose(),
                Ok(None) => Ok(None),
                Err(_) => std::mem::replace(&mut reading, Ok(None)).map(|_| None),
            };
            // The others learn here, and not between tensors, that this rank has no room for its part.
            let next = std::mem::replace(&mut kept_all, Ok(())).and(next);
            let (own, all) = group.agree(CALL, next, |next| next.as_ref().map(shapes))?;
            let Some(shapes) = all.into_iter().next().flatten() else {
                break;
            };
            for (name, (dtype, shape)) in shapes {
                let tensor = match own.as_ref().and_then(|own| own.get(&name)) {
                    Some(own) => own.to_device(device).and_then(|own| own.contiguous()),
                    None => DType::from_str(&dtype)
                        .map_err(candle_core::Error::wrap)
                        .and_then(|dtype| Tensor::zeros(shape, dtype, device)),
                };
                let sent = send(group, tensor)?;
                let kept = match &part {
                    Some(part) => part.cut(&name, &sent),
                    None => Ok(Some(sent)),
                };
                let kept = kept.and_then(|it| it.map(|it| it.to_device(&Device::Cpu)).transpose());
                match kept {
                    Ok(kept) => tensors.extend(kept.map(|kept| (name, kept))),
                    Err(error) => kept_all = kept_all.and(Err(error.into())),
                }
            }
        }
        let mut metadata = self.document.training.clone();
        metadata.extend(part.map(|part| (PIECES.to_owned(), part.pieces)));
        Ok(StateDict { tensors, metadata })
    }
}

/// Each tensor's type and shape.
fn shapes(tensors: &Named) -> BTreeMap<String, (String, Vec<usize>)> {
    let shaped = |(name, tensor): (&String, &Tensor)| {
        let dtype = tensor.dtype().as_str().to_owned();
        (name.clone(), (dtype, tensor.dims().to_vec()))
    };
    tensors.iter().map(shaped).collect()
}

/// What the ranks of this machine take of a state of so many bytes: each the whole, or its part.
fn ranks_here(bytes: u64, group: &Group, part: &Option<Own>) -> u64 {
    let here = 1 + group.beside().len() as u64;
    match part {
        Some(_) => (bytes / group.size() as u64).saturating_mul(here),
        None => bytes.saturating_mul(here),
    }
}

/// Each parameter's name, shape and type.
fn described<T: Resumable + ?Sized>(trainer: &T) -> Vec<String> {
    let model = trainer.model().into_iter();
    let text = |Parameter { name, var }: Parameter| {
        let strided = match var.is_contiguous() {
            true => "",
            false => ", not contiguous",
        };
        format!("{name} {:?} {}{strided}", var.dims(), var.dtype().as_str())
    };
    model.map(text).collect()
}

/// Replaces a tensor's values by rank 0's. If one rank has no tensor, all fail.
fn send(group: &Group, tensor: candle_core::Result<Tensor>) -> Result<Tensor> {
    let tensor = tensor.map_err(|error| group.collect_none("broadcast", error.into()))?;
    if tensor.elem_count() > 0 {
        group.broadcast(&tensor, 0)?;
    }
    Ok(tensor)
}
