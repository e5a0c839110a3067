use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Error, Tensor};
use rayon::prelude::*;

use super::Fused;
use super::engine::{Loaded, Snapshot};
use super::reader::Document;
use crate::error::{Remedy, Result, invalid};
use crate::optim::state_dict::{OPTIMIZER, PIECES, Piece, STEP, entry};
use crate::optim::{Algorithm, Commit, Committed, Parameter, Shard, StateDict};

impl<A: Algorithm> Commit for Fused<A> {
    /// The parameters that are not frozen, in the order in which they were given.
    fn parameters(&self) -> &[Parameter] {
        &self.names
    }

    fn frozen(&self) -> Vec<Parameter> {
        self.setup.frozen()
    }

    fn check(&mut self, gradients: &GradStore) -> Result<()> {
        self.check_update(gradients, None)
    }

    /// Applies one update with these gradients. With an error nothing has changed, and it may be called again. Parameters without a
    /// gradient stay as they are, and their step is not counted.
    ///
    /// It allocates nothing, on the host or on the device, and does not wait. With clipping by norm, a loss scale or `skip_non_finite` on
    /// CUDA, the device decides whether to skip a step: [`Committed::Unknown`]. [`progress`](Self::progress) has the counts.
    ///
    /// # Errors
    /// If a gradient does not fit its parameter, if [`set_learning_rate`](Self::set_learning_rate) set a rate that is out of range, or,
    /// with a loss scale, if no loss went through [`scale_loss`](Commit::scale_loss) since the last update
    /// ([`is_optimizer`](crate::Error::is_optimizer)); errors of launching on a device. [`UpdateInterrupted`](crate::error::UpdateInterrupted), which would mean that some parameters
    /// have changed, is ruled out by these checks, short of a panic in a thread of the update. A sharded optimizer may need the sum of
    /// all ranks' gradients, which a trainer gives it.
    fn commit(&mut self, gradients: &GradStore) -> Result<Committed> {
        self.apply(gradients, None)
    }

    /// Keeps state for the elements of this shard alone, and updates only them, from their gradients; the rest of the gradients is not
    /// read. Their new values are those that the whole optimizer would compute, bit for bit, given the same gradients. The part of the
    /// moments in host memory is chosen anew from the pieces.
    fn shard(&mut self, shard: &Shard, state: Option<&StateDict>) -> Result<()> {
        let setup = self.setup.cut(Some(shard))?;
        if let Some(state) = state {
            return self.load(setup, state);
        }
        setup.check_listed()?;
        let snapshots = (0..setup.parameters.len()).map(|index| self.kept(&setup, index));
        let loaded = Loaded {
            snapshots: snapshots.collect::<Result<_>>()?,
            progress: self.progress()?,
        };
        self.set_up(setup, Some(&loaded))
    }

    /// All that decides how parameters move, in words.
    fn describe(&self) -> Vec<String> {
        let mut lines = vec![format!("the optimizer is {}", A::NAME)];
        for (name, value) in self.hyper_parameters::<Vec<_>>() {
            lines.push(format!("`{name}` is {value}"));
        }
        let groups = self.setup.groups.iter().enumerate();
        lines.extend(groups.map(|(index, group)| format!("group {index} has {group:?}")));
        lines.push(format!("gradients have {:?}", self.setup.adjustment));
        if let Some(first) = self.setup.updated().next() {
            let kept = first.kept.iter();
            let kept =
                kept.map(|held| format!("{} {:?} as {:?}", held.name, held.whole, held.form));
            lines.push(format!("state has {}", Vec::from_iter(kept).join(", ")));
        }
        lines.push(match self.setup.shard {
            Some(_) => "state is sharded".to_owned(),
            None => "state is whole".to_owned(),
        });
        lines
    }

    fn is_sharded(&self) -> bool {
        self.setup.shard.is_some()
    }

    fn measure(&mut self, gradients: &GradStore, shard: &Shard) -> Result<Option<f64>> {
        if !self.setup.adjustment.needs_survey() {
            return Ok(None);
        }
        self.setup.check(gradients)?;
        let measured = match self.measured.take() {
            Some(measured) if measured.shard.as_ref() == Some(shard) => measured,
            _ => {
                let measured = self.setup.cut(Some(shard))?;
                measured.check_listed()?;
                measured
            }
        };
        let squares = self.engine.measure(&measured, gradients)?;
        self.measured = Some(measured);
        Ok(Some(squares))
    }

    /// On CUDA, too, it knows then whether the step is skipped.
    fn commit_measured(&mut self, gradients: &GradStore, squares: f64) -> Result<Committed> {
        let squares = Some(squares).filter(|_| self.setup.adjustment.needs_survey());
        self.apply(gradients, squares)
    }

    /// Returns the loss to differentiate: the loss times the loss scale, in f32 (f64 for f64), or the loss itself without a loss
    /// scale. Trainers and [`backward_step`](candle_nn::Optimizer::backward_step) call it.
    fn scale_loss(&self, loss: &Tensor) -> Result<Tensor> {
        if self.setup.adjustment.loss_scale.is_none() {
            return Ok(loss.clone());
        }
        let loss = match loss.dtype() {
            // A loss of 1 times the scale may be too much for f16.
            DType::F16 | DType::BF16 => loss.to_dtype(DType::F32)?,
            _ => loss.clone(),
        };
        let scaled = self.engine.scale(&loss)?;
        self.has_scaled.store(true, Relaxed);
        Ok(scaled)
    }

    fn takes_f32(&self) -> bool {
        true
    }

    fn learning_rate(&self) -> Option<f64> {
        Some(Self::learning_rate(self))
    }

    /// On CUDA `None`: [`progress`](Self::progress) waits for it.
    fn gradient_norm(&self) -> Option<f64> {
        let mut devices = self.setup.parameters.iter().map(|p| p.var.device());
        match devices.all(Device::is_cpu) {
            true => self.progress().ok()?.gradient_norm,
            false => None,
        }
    }

    fn remedies(&self) -> Vec<Remedy> {
        self.ways_to_save()
    }

    fn state_bytes(&self) -> Option<u64> {
        Some(Self::state_bytes(self))
    }

    /// Copies the optimizer's state to host memory, with the hyper-parameters, the options of the groups, the counters and the
    /// loss scale. Frozen parameters have no state. Moments of 8 bits are saved in f32, so that any optimizer can load them; loaded into
    /// 8 bits again they are the same bits, in blocks whose largest element is at least 1e-30. On CUDA this waits for the device. [`load_state`](Self::load_state) finds parameters by
    /// name: see [`Group`](crate::optim::Group).
    ///
    /// The state of a sharded optimizer is a part of the whole: of each parameter the elements of the shard, one range behind the other,
    /// with the ranges in the metadata under `pieces`. Only [`StateDict::merge`] takes it.
    ///
    /// # Errors
    /// Errors from copying.
    fn state(&self) -> Result<StateDict> {
        let mut state = StateDict::default();
        let all = &self.setup.parameters;
        let saved = |(index, parameter)| self.saved(index, parameter);
        // New memory is slower to come than to fill, and comes faster to several threads. A GPU's context belongs to this one.
        let snapshots = match all.iter().all(|parameter| parameter.var.device().is_cpu()) {
            true => all.par_iter().enumerate().map(saved).collect(),
            false => all
                .iter()
                .enumerate()
                .map(saved)
                .collect::<Result<Vec<_>>>(),
        };
        for (parameter, snapshot) in all.iter().zip(snapshots?) {
            if self.setup.is_frozen(parameter) {
                continue;
            }
            let mut put = |kept: &str, tensor| {
                let name = entry(&parameter.name, kept);
                state.tensors.insert(name, tensor);
            };
            if let Some(Snapshot { step, tensors }) = snapshot {
                let step = i64::try_from(step).unwrap_or(i64::MAX);
                put(STEP, Tensor::new(step, &Device::Cpu)?);
                for (held, tensor) in parameter.kept.iter().zip(tensors) {
                    put(held.name, tensor);
                }
            }
        }
        let pieces = self.pieces()?.map(|pieces| (PIECES.to_owned(), pieces));
        state.metadata.extend(pieces);
        let document = Document {
            name: Some(A::NAME.to_owned()),
            params: self.hyper_parameters(),
            groups: Some(self.setup.groups.clone()),
            progress: self.engine.progress()?,
        };
        let document = serde_json::to_string(&document).map_err(Error::wrap)?;
        state.metadata.insert(OPTIMIZER.to_owned(), document);
        Ok(state)
    }

    /// Continues from saved state. Its hyper-parameters, options of groups and loss scale replace those of this optimizer, as in
    /// PyTorch; state without them, such as PyTorch's own by its names, leaves them as they are. Tensors are converted to the
    /// types that are kept here. The state of frozen parameters is ignored, and so are master weights that are not kept here; those that
    /// are missing start from the parameters.
    ///
    /// The new state lies beside the old one until it is complete. A sharded optimizer takes the whole state, of which it keeps the elements
    /// of its shard, or its own part, with the `pieces` that [`state`](Self::state) gives it.
    ///
    /// # Errors
    /// [`StateError`](crate::error::StateError) with every entry that does not fit;
    /// an error about the optimizer ([`is_optimizer`](crate::Error::is_optimizer)) if the state thaws a group of a type that this
    /// optimizer's options are not for;
    /// errors from copying. Nothing has changed then.
    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        self.load(self.setup.clone(), state)
    }
}

impl<A: Algorithm> Fused<A> {
    /// The document that says of which elements a sharded optimizer's state is.
    pub(super) fn pieces(&self) -> Result<Option<String>> {
        if self.setup.shard.is_none() {
            return Ok(None);
        }
        let all = self.setup.parameters.iter();
        let all = all.filter(|parameter| !self.setup.is_frozen(parameter));
        let pieces = all.map(|parameter| {
            let (ranges, kept) = (parameter.ranges.iter(), parameter.kept.iter());
            let piece = Piece {
                shape: parameter.var.dims().to_vec(),
                ranges: ranges.map(|range| (range.start, range.end)).collect(),
                kept: kept.map(|held| held.name.to_owned()).collect(),
            };
            (&parameter.name, piece)
        });
        let document = serde_json::to_string(&pieces.collect::<BTreeMap<_, _>>());
        Ok(Some(document.map_err(Error::wrap)?))
    }

    /// Checks everything that could make an update fail.
    fn check_update(&self, gradients: &GradStore, squares: Option<f64>) -> Result<()> {
        if self.setup.adjustment.loss_scale.is_some() && !self.has_scaled.load(Relaxed) {
            return Err(invalid!(
                Optimizer,
                "the optimizer has a loss scale, but the loss was not scaled: differentiate `optimizer.scale_loss(&loss)?`, or call `backward_step`"
            ));
        }
        let needs_sum = self.setup.shard.is_some() && self.setup.adjustment.needs_survey();
        if needs_sum && squares.is_none() {
            return Err(invalid!(
                Optimizer,
                "a sharded optimizer with clipping by norm, a loss scale or `skip_non_finite` needs a sum over the gradients of all ranks: let a trainer with `.group(&group)` make its updates"
            ));
        }
        self.setup.check(gradients)
    }

    fn apply(&mut self, gradients: &GradStore, squares: Option<f64>) -> Result<Committed> {
        self.check_update(gradients, squares)?;
        let committed = self.engine.commit(&self.setup, gradients, squares)?;
        self.has_scaled.store(false, Relaxed);
        Ok(committed)
    }
}
