use std::sync::atomic::Ordering::Relaxed;

use candle_core::{Device, Error, Tensor};
use rayon::prelude::*;

use super::engine::Loaded;
use super::optimizer::Fused;
use super::reader::{Document, OPTIMIZER, Reader, STEP, entry};
use crate::error::Result;
use crate::optim::{Algorithm, StateDict};

impl<A: Algorithm> Fused<A> {
    /// Copies the optimizer's state to host memory, with the hyper-parameters, the options of the groups, the counters and the
    /// loss scale. Frozen parameters have no state. Moments of 8 bits are saved in f32, so that any optimizer can load them; loaded into
    /// 8 bits again they are the same bits, in blocks whose largest element is at least 1e-30. On CUDA this waits for the device. [`load_state`](Self::load_state) finds parameters by
    /// name: see [`Group`](crate::optim::Group).
    ///
    /// # Errors
    /// Errors from copying.
    pub fn state(&self) -> Result<StateDict> {
        let mut state = StateDict::default();
        let parameters = &self.setup.parameters;
        let snapshot = |(index, parameter)| self.engine.snapshot(index, parameter);
        // New memory is slower to come than to fill, and comes faster to several threads. A GPU's context belongs to this one.
        let is_cpu = parameters
            .iter()
            .all(|parameter| parameter.var.device().is_cpu());
        let snapshots: Vec<_> = match is_cpu {
            true => parameters
                .par_iter()
                .enumerate()
                .map(snapshot)
                .collect::<Result<_>>()?,
            false => parameters
                .iter()
                .enumerate()
                .map(snapshot)
                .collect::<Result<_>>()?,
        };
        for (parameter, snapshot) in parameters.iter().zip(snapshots) {
            let Some(snapshot) = snapshot else { continue };
            for (held, tensor) in parameter.kept.iter().zip(snapshot.tensors) {
                let name = entry(parameter, held.kept.name);
                state.tensors.insert(name, held.unpack(tensor)?);
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
    /// types that are kept here. The state of frozen parameters is ignored, and so are master weights that are not kept here; those that
    /// are missing start from the parameters.
    ///
    /// The new state lies beside the old one until it is complete.
    ///
    /// # Errors
    /// [`StateError`](crate::error::StateError) with every entry that does not fit;
    /// [`OptimizerError`](crate::error::OptimizerError) if the state thaws a group of a type that this optimizer's options are not for;
    /// errors from copying. Nothing has changed then.
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
}
