use std::sync::atomic::Ordering::Relaxed;

use candle_core::{DType, Device, Error, Tensor};

use super::managed::{Managed, Origin, Snapshot};
use super::optimizer::Fused;
use super::reader::{MASTER, OPTIMIZER, Reader, STEP, Saved, entry};
use crate::error::Result;
use crate::optim::{Algorithm, StateDict};

impl<A: Algorithm> Fused<A> {
    /// A copy of the optimizer's state in host memory, with the hyper-parameters, the options of the groups, the counters and the
    /// loss scale. Frozen parameters have no state. On CUDA this waits for the device. [`load_state`](Self::load_state) finds parameters
    /// by name: see [`Group`](crate::optim::Group).
    ///
    /// # Errors
    /// Errors from copying.
    pub fn state(&self) -> Result<StateDict> {
        let mut state = StateDict::default();
        for (index, parameter) in self.parameters.updated.iter().enumerate() {
            let Some(snapshot) = self.engine.snapshot(index, parameter)? else {
                continue;
            };
            let names = parameter.kept.iter().map(|(kept, _)| kept.name);
            let tensors = names.zip(&snapshot.tensors);
            for (name, tensor) in tensors.chain(snapshot.master.iter().map(|m| (MASTER, m))) {
                let tensor = tensor.to_device(&Device::Cpu)?;
                state.tensors.insert(entry(parameter, name), tensor);
            }
            let step = i64::try_from(snapshot.step).unwrap_or(i64::MAX);
            let step = Tensor::new(step, &Device::Cpu)?;
            state.tensors.insert(entry(parameter, STEP), step);
        }
        let counters = self.engine.counters()?;
        let saved = Saved::new(&self.algorithm, &self.groups, counters, &self.adjustment);
        let saved = serde_json::to_string(&saved).map_err(Error::wrap)?;
        state.metadata.insert(OPTIMIZER.to_owned(), saved);
        Ok(state)
    }

    /// Continues from saved state. Its hyper-parameters, options of groups and loss scale replace those of this optimizer, as in
    /// PyTorch; state without them, such as PyTorch's own by its names, leaves them as they are. Tensors are converted to the
    /// types that are kept here. The state of frozen parameters is ignored.
    ///
    /// The new state lies beside the old one until it is complete.
    ///
    /// # Errors
    /// [`StateError`](crate::error::StateError) with every entry that is missing, unexpected or unfit; errors from copying. Nothing
    /// has changed then.
    pub fn load_state(&mut self, state: &StateDict) -> Result<()> {
        let mut reader = Reader::new(state);
        let saved = reader.saved::<A>();
        let algorithm = reader.algorithm(&self.algorithm, &saved);
        if !self.keeps_state_of(&algorithm) {
            let what = "has hyper-parameters that need other state than there is";
            reader.unfit(OPTIMIZER, what);
        }
        let groups = reader.groups::<A>(&self.groups, &saved);
        let counters = reader.counters(&self.adjustment, &saved);
        let updated = self.parameters.without_frozen(&groups);
        let snapshots: Vec<_> = updated.iter().map(|p| reader.snapshot(p)).collect();
        for parameter in &self.parameters.all {
            reader.pass_over(parameter);
        }
        reader.finish()?;
        let origins = snapshots.iter().zip(&updated);
        let origins = origins.map(|(snapshot, parameter)| snapshot.converted(parameter));
        let origins = origins.collect::<Result<_>>()?;
        (self.engine).set_up(&algorithm, &updated, origins, Some(counters))?;
        self.parameters.set_updated(updated);
        self.algorithm = algorithm;
        self.groups = groups;
        // Losses so far were multiplied by the scale from before.
        self.has_scaled.store(false, Relaxed);
        Ok(())
    }
}

impl Snapshot {
    /// The same on the host, in the types that are kept for the parameter.
    fn converted(&self, parameter: &Managed) -> Result<Origin> {
        let convert = |tensor: &Tensor, dtype| tensor.to_device(&Device::Cpu)?.to_dtype(dtype);
        let tensors = self.tensors.iter().zip(&parameter.kept);
        let tensors = tensors.map(|(tensor, (_, dtype))| convert(tensor, *dtype));
        let master = self.master.as_ref();
        let master = master.map(|master| convert(master, DType::F32));
        Ok(Origin::Loaded(Self {
            step: self.step,
            tensors: tensors.collect::<candle_core::Result<_>>()?,
            master: master.transpose()?,
        }))
    }
}
