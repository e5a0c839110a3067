use candle_core::{DType, Device, Tensor};

use super::Fused;
use super::engine::Snapshot;
use super::managed::Managed;
use super::state_reader::{MASTER, Reader, STEP, entry};
use crate::error::Result;
use crate::optim::Algorithm;
use crate::optim::StateDict;
use crate::optim::group::GroupOptions;

impl<A: Algorithm> Fused<A> {
    /// A copy of all that is kept for the parameters, in host memory, with the hyper-parameters, the groups' options, the counters
    /// and the loss scale. On CUDA this waits for the device.
    ///
    /// Parameters are found again by their names, so give them some: parameters without one are called by their places in the
    /// list, and `varmap.all_vars()` comes in another order in each run.
    ///
    /// # Errors
    /// candle's, from copying.
    pub fn state(&self) -> Result<StateDict> {
        let mut dict = StateDict::default();
        for (index, parameter) in self.parameters.iter().enumerate() {
            let Some(snapshot) = self.engine.snapshot(index, parameter)? else {
                continue;
            };
            let names = parameter.kept.iter().map(|(kept, _)| kept.name);
            let tensors = names.zip(&snapshot.tensors);
            for (name, tensor) in tensors.chain(snapshot.master.iter().map(|m| (MASTER, m))) {
                let tensor = tensor.to_device(&Device::Cpu)?;
                dict.tensors.insert(entry(parameter, name), tensor);
            }
            let step = Tensor::new(
                i64::try_from(snapshot.step).unwrap_or(i64::MAX),
                &Device::Cpu,
            )?;
            dict.tensors.insert(entry(parameter, STEP), step);
        }
        let counters = self.engine.counters()?;
        let mut put = |name: String, value: String| dict.metadata.insert(name, value);
        put("optimizer".to_owned(), A::NAME.to_owned());
        for hyper in self.algorithm.hyper_parameters() {
            put(hyper.name.to_owned(), hyper.value.to_string());
        }
        for (index, options) in self.groups.iter().enumerate() {
            for (name, value) in words(options) {
                put(format!("group.{index}.{name}"), value);
            }
        }
        put("steps".to_owned(), counters.steps.to_string());
        put("skipped".to_owned(), counters.skipped.to_string());
        if self.adjustment.loss_scale.is_some() {
            put("loss_scale".to_owned(), counters.scale.to_string());
            put("loss_scale_streak".to_owned(), counters.streak.to_string());
        }
        Ok(dict)
    }

    /// Goes on from saved state. Hyper-parameters, groups' options and the loss scale that it holds replace those that the optimizer
    /// was built with, as in PyTorch; state without any, such as PyTorch's by its names, leaves them as they are. Tensors are
    /// converted to the types that are kept here. Words that it does not know are passed over.
    ///
    /// On a device the new state lies beside the old one for a moment.
    ///
    /// # Errors
    /// [`StateError`](crate::StateError), with every entry that is missing, unexpected or unfit; candle's from copying. Nothing has changed then.
    pub fn load_state(&mut self, dict: &StateDict) -> Result<()> {
        let mut reader = Reader::new(dict);
        let snapshots: Vec<_> = (self.parameters.iter())
            .map(|parameter| reader.snapshot(parameter))
            .collect();
        let algorithm = reader.algorithm(&self.algorithm);
        if !self.keeps_state_of(&algorithm) {
            reader.unfit(
                "optimizer",
                "has hyper-parameters that need other state than this one's",
            );
        }
        let groups = reader.groups::<A>(&self.groups);
        let counters = reader.counters(&self.adjustment);
        reader.finish()?;
        let snapshots = (snapshots.into_iter().zip(&self.parameters))
            .map(|(snapshot, parameter)| snapshot.converted(parameter))
            .collect::<Result<_>>()?;
        self.engine.restore(snapshots, counters)?;
        self.algorithm = algorithm;
        self.groups = groups;
        Ok(())
    }
}

/// A group's options as words; those that are not there stand for the optimizer's own.
fn words(options: &GroupOptions) -> Vec<(&'static str, String)> {
    let mut words = vec![
        (
            "learning_rate_factor",
            options.learning_rate_factor.to_string(),
        ),
        ("frozen", f64::from(options.frozen).to_string()),
    ];
    let decay = options.weight_decay;
    words.extend(decay.map(|decay| ("weight_decay", decay.to_string())));
    words
}

impl Snapshot {
    /// The same on the host, in the types that are kept for the parameter.
    fn converted(self, parameter: &Managed) -> Result<Self> {
        let convert = |tensor: &Tensor, dtype| tensor.to_device(&Device::Cpu)?.to_dtype(dtype);
        let types = parameter.kept.iter().map(|(_, dtype)| *dtype);
        let tensors = self.tensors.iter().zip(types);
        let tensors = tensors.map(|(tensor, dtype)| convert(tensor, dtype));
        let master = self.master.as_ref();
        let master = master.map(|master| convert(master, DType::F32));
        Ok(Self {
            step: self.step,
            tensors: tensors.collect::<candle_core::Result<_>>()?,
            master: master.transpose()?,
        })
    }
}
