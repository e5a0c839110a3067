use std::sync::atomic::Ordering::Relaxed;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Error, Tensor};

use super::engine::Loaded;
use super::optimizer::Fused;
use super::reader::{Document, OPTIMIZER, Reader, STEP, entry};
use super::setup::{Managed, bytes_of};
use crate::error::{Remedy, Result};
use crate::optim::rule::Rule;
use crate::optim::{Algorithm, Commit, Committed, Parameter, ParamsAdafactor, StateDict};

impl<A: Algorithm> Commit for Fused<A> {
    fn parameters(&self) -> &[Parameter] {
        Fused::parameters(self)
    }

    fn commit(&mut self, gradients: &GradStore) -> Result<Committed> {
        Fused::commit(self, gradients)
    }

    fn scale_loss(&self, loss: &Tensor) -> Result<Tensor> {
        Fused::scale_loss(self, loss)
    }

    fn takes_f32(&self) -> bool {
        true
    }

    fn remedies(&self) -> Vec<Remedy> {
        // Bytes that are counted, not estimated.
        let total = |bytes: fn(&Managed) -> u64| self.setup.updated().map(bytes).sum::<u64>();
        let mut remedies = vec![
            ("moments in bf16".to_owned(), total(in_bf16)),
            ("Sgd without momentum".to_owned(), total(by_rule)),
        ];
        if A::NAME != ParamsAdafactor::NAME {
            remedies.push((ParamsAdafactor::NAME.to_owned(), total(by_adafactor)));
        }
        remedies.extend(self.freezing());
        let saving = remedies.into_iter().filter(|(_, saves)| *saves > 0);
        saving
            .map(|(advice, saves)| Remedy::new(advice, Some(saves)))
            .collect()
    }

    fn state_bytes(&self) -> Option<u64> {
        Some(Fused::state_bytes(self))
    }

    fn state(&self) -> Result<StateDict> {
        Fused::state(self)
    }

    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        Fused::load_state(self, state)
    }
}

impl<A: Algorithm> Fused<A> {
    /// Copies the optimizer's state to host memory, with the hyper-parameters, the options of the groups, the counters and the
    /// loss scale. Frozen parameters have no state. On CUDA this waits for the device. [`load_state`](Self::load_state) finds parameters
    /// by name: see [`Group`](crate::optim::Group).
    ///
    /// # Errors
    /// Errors from copying.
    pub fn state(&self) -> Result<StateDict> {
        let mut state = StateDict::default();
        for (index, parameter) in self.setup.parameters.iter().enumerate() {
            let Some(snapshot) = self.engine.snapshot(index, parameter)? else {
                continue;
            };
            for ((kept, _), tensor) in parameter.kept.iter().zip(snapshot.tensors) {
                state.tensors.insert(entry(parameter, kept.name), tensor);
            }
            let step = i64::try_from(snapshot.step).unwrap_or(i64::MAX);
            let step = Tensor::new(step, &Device::Cpu)?;
            state.tensors.insert(entry(parameter, STEP), step);
        }
        let mut rule = self.setup.rule.clone();
        let params = rule.hyper_parameters();
        let document = Document {
            name: Some(A::NAME.to_owned()),
            params: params
                .map(|(name, _, value)| (name.to_owned(), value.get()))
                .collect(),
            groups: Some(self.setup.groups.clone()),
            progress: self.engine.progress()?,
        };
        let document = serde_json::to_string(&document).map_err(Error::wrap)?;
        state.metadata.insert(OPTIMIZER.to_owned(), document);
        Ok(state)
    }

    /// Continues from saved state. Its hyper-parameters, options of groups and loss scale replace those of this optimizer, as in
    /// PyTorch; state without them, such as PyTorch's own by its names, leaves them as they are. Tensors are converted to the
    /// types that are kept here. The state of frozen parameters is ignored.
    ///
    /// The new state lies beside the old one until it is complete.
    ///
    /// # Errors
    /// [`StateError`](crate::error::StateError) with every entry that does not fit; errors from copying. Nothing has changed then.
    pub fn load_state(&mut self, state: &StateDict) -> Result<()> {
        let mut reader = Reader::new(state);
        let (rule, groups, progress) = reader.document(&self.setup);
        let is_frozen = |group: usize| groups.get(group).is_some_and(|group| group.frozen);
        let parameters = &self.setup.parameters;
        let snapshots = parameters.iter();
        let snapshots = snapshots.map(|p| (!is_frozen(p.group)).then(|| reader.snapshot(p)));
        let snapshots = snapshots.collect();
        reader.finish(parameters)?;
        let loaded = Loaded {
            snapshots,
            progress,
        };
        self.set_up(rule, groups, Some(&loaded))?;
        // Earlier losses were multiplied by the old scale.
        self.has_scaled.store(false, Relaxed);
        Ok(())
    }

    /// Freezing a group or, if there is one group, the largest parameter.
    fn freezing(&self) -> Vec<(String, u64)> {
        let updated: Vec<_> = self.setup.updated().collect();
        if self.setup.groups.len() > 1 {
            let groups = (0..self.setup.groups.len()).map(|group| {
                let parameters = updated.iter().filter(|p| p.group == group);
                let saving = parameters.map(|p| frozen(p)).sum();
                (format!("group {group} not trained"), saving)
            });
            return groups.collect();
        }
        let largest = updated.iter().max_by_key(|parameter| parameter.len);
        let largest = largest.filter(|_| updated.len() > 1);
        let largest = largest.map(|p| (format!("`{}` not trained", p.name), frozen(p)));
        largest.into_iter().collect()
    }
}

fn by_rule(parameter: &Managed) -> u64 {
    parameter.by_rule().iter().map(bytes_of).sum()
}

fn in_bf16(parameter: &Managed) -> u64 {
    let moments = parameter.kept.iter();
    let moments = moments.filter(|(kept, dtype)| kept.is_moment && *dtype == DType::F32);
    moments.map(bytes_of).sum::<u64>() / 2
}

fn by_adafactor(parameter: &Managed) -> u64 {
    let state = ParamsAdafactor::default().state(parameter.var.dims());
    let needed = state.into_iter().map(|kept| bytes_of(&(kept, DType::F32)));
    by_rule(parameter).saturating_sub(needed.sum())
}

/// Its state and its summed gradients, which are f32 for smaller types.
fn frozen(parameter: &Managed) -> u64 {
    let gradients = parameter.len * parameter.var.dtype().size_in_bytes().max(4);
    gradients as u64 + parameter.kept_bytes()
}
