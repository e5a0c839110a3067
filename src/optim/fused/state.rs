use std::collections::BTreeSet;

use candle_core::{DType, Device, Tensor};

use super::adjustment::Counters;
use super::engine::Snapshot;
use super::group::GroupOptions;
use super::parameter::Parameter;
use super::state_dict::StateDict;
use super::{Fused, check};
use crate::error::{Result, StateError};
use crate::optim::Algorithm;
use crate::optim::rule::Range;

impl<A: Algorithm> Fused<A> {
    /// A copy of all that is kept for the parameters, in host memory, with the hyper-parameters, the groups' options, the counters
    /// and the loss scale. On CUDA this waits for the device.
    ///
    /// Parameters are found again by their names, so give them some: parameters without one are called by their places in the
    /// list, and `varmap.all_vars()` comes in another order in each run.
    ///
    /// # Errors
    /// candle's, from copying.
    pub fn state_dict(&self) -> Result<StateDict> {
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
    /// converted to the types that are kept here.
    ///
    /// On a device the new state lies beside the old one for a moment.
    ///
    /// # Errors
    /// [`StateError`], with every entry that is missing, unexpected or unfit; candle's from copying. Nothing has changed then.
    pub fn load_state_dict(&mut self, dict: &StateDict) -> Result<()> {
        let mut reader = Reader {
            dict,
            error: StateError::default(),
            known: BTreeSet::new(),
        };
        let snapshots: Vec<_> = (self.parameters.iter())
            .map(|parameter| reader.snapshot(parameter))
            .collect();
        let algorithm = reader.algorithm(&self.algorithm);
        let groups = reader.groups::<A>(&self.groups);
        let mut counters = Counters::new(&self.adjustment);
        counters.steps = reader.count("steps");
        counters.skipped = reader.count("skipped");
        if self.adjustment.loss_scale.is_some() {
            counters.streak = reader.count("loss_scale_streak");
            counters.scale = reader.number("loss_scale", counters.scale);
            if !Range::Scale.holds(counters.scale) {
                reader.unfit("loss_scale", "is no scale");
            }
        }
        reader.finish()?;
        let snapshots = (snapshots.into_iter().zip(&self.parameters))
            .map(|(snapshot, parameter)| snapshot.placed(parameter))
            .collect::<Result<_>>()?;
        self.engine.restore(snapshots, counters)?;
        self.algorithm = algorithm;
        self.groups = groups;
        Ok(())
    }
}

const STEP: &str = "step";
const MASTER: &str = "master";

fn entry(parameter: &Parameter, name: &str) -> String {
    format!("{}.{name}", parameter.name)
}

/// A group's options as words; those that are not there stand for the optimizer's own.
fn words(options: &GroupOptions) -> Vec<(&'static str, String)> {
    let mut words = vec![
        (
            "learning_rate_factor",
            options.learning_rate_factor.to_string(),
        ),
        ("is_frozen", f64::from(options.is_frozen).to_string()),
    ];
    let decay = options.weight_decay;
    words.extend(decay.map(|decay| ("weight_decay", decay.to_string())));
    words
}

/// Looks entries up, and keeps a list of all that is wrong with them.
struct Reader<'a> {
    dict: &'a StateDict,
    error: StateError,
    known: BTreeSet<String>,
}

impl Reader<'_> {
    fn snapshot(&mut self, parameter: &Parameter) -> Snapshot {
        let kept = parameter.kept.iter();
        let tensors =
            kept.filter_map(|(kept, _)| self.tensor(entry(parameter, kept.name), &kept.dims));
        let tensors = tensors.collect();
        let master = match parameter.has_master {
            true => self.tensor(entry(parameter, MASTER), parameter.var.dims()),
            false => None,
        };
        Snapshot {
            step: self.step(entry(parameter, STEP)),
            tensors,
            master,
        }
    }

    fn tensor(&mut self, name: String, dims: &[usize]) -> Option<Tensor> {
        let Some(tensor) = self.dict.tensors.get(&name) else {
            self.error.missing.push(name);
            return None;
        };
        if tensor.dims() != dims {
            self.unfit(
                &name,
                &format!("has shape {:?}, not {dims:?}", tensor.dims()),
            );
        }
        if !tensor.dtype().is_float() {
            self.unfit(
                &name,
                &format!("is {:?}, not floating-point", tensor.dtype()),
            );
        }
        self.known.insert(name);
        Some(tensor.clone())
    }

    /// PyTorch keeps it as f32, this crate as i64.
    fn step(&mut self, name: String) -> u64 {
        let Some(tensor) = self.tensor_of_step(&name) else {
            self.error.missing.push(name);
            return 0;
        };
        self.known.insert(name.clone());
        match tensor {
            Some(step) if step >= 0. && step.fract() == 0. && step <= u64::MAX as f64 => {
                step as u64
            }
            _ => {
                self.unfit(&name, "is no number of steps");
                0
            }
        }
    }

    fn tensor_of_step(&self, name: &str) -> Option<Option<f64>> {
        let tensor = self.dict.tensors.get(name)?;
        let step = tensor
            .flatten_all()
            .and_then(|step| step.to_dtype(DType::F64)?.get(0)?.to_scalar());
        Some(step.ok().filter(|_| tensor.elem_count() == 1))
    }

    fn algorithm<A: Algorithm>(&mut self, algorithm: &A) -> A {
        if let Some(name) = self.dict.metadata.get("optimizer")
            && name != A::NAME
        {
            self.unfit("optimizer", &format!("is {name}, not {}", A::NAME));
        }
        let mut loaded = algorithm.clone();
        for hyper in algorithm.hyper_parameters() {
            let value = self.number(hyper.name, hyper.value);
            match hyper.range.holds(value) {
                true => loaded.set_hyper_parameter(hyper.name, value),
                false => self.unfit(
                    hyper.name,
                    &format!("is {value}, not {}", hyper.range.words()),
                ),
            }
        }
        loaded
    }

    fn groups<A: Algorithm>(&mut self, groups: &[GroupOptions]) -> Vec<GroupOptions> {
        let is_group = |name: &str| name.starts_with("group.");
        if !self.dict.metadata.keys().any(|name| is_group(name)) {
            return groups.to_vec();
        }
        let factor = |index: usize| format!("group.{index}.learning_rate_factor");
        let count = (0..).take_while(|index| self.dict.metadata.contains_key(&factor(*index)));
        let count = count.count();
        if count != groups.len() {
            self.unfit(
                "group",
                &format!("are {count} groups, not {}", groups.len()),
            );
        }
        let options = (0..groups.len()).map(|index| {
            let decay = format!("group.{index}.weight_decay");
            let has_decay = self.dict.metadata.contains_key(&decay);
            let options = GroupOptions {
                learning_rate_factor: self.number(&factor(index), 1.),
                weight_decay: has_decay.then(|| self.number(&decay, 0.)),
                is_frozen: self.number(&format!("group.{index}.is_frozen"), 0.) != 0.,
            };
            if let Err(error) = check::group::<A>(&options) {
                self.unfit(&format!("group.{index}"), &error.to_string());
            }
            options
        });
        options.collect()
    }

    fn count(&mut self, name: &str) -> u64 {
        let Some(word) = self.dict.metadata.get(name) else {
            return 0;
        };
        word.parse().unwrap_or_else(|_| {
            self.unfit(name, &format!("is «{word}», no count"));
            0
        })
    }

    fn number(&mut self, name: &str, otherwise: f64) -> f64 {
        let Some(word) = self.dict.metadata.get(name) else {
            return otherwise;
        };
        word.parse().unwrap_or_else(|_| {
            self.unfit(name, &format!("is «{word}», no number"));
            otherwise
        })
    }

    fn unfit(&mut self, name: &str, what: &str) {
        self.error.unfit.push(format!("{name} {what}"));
    }

    fn finish(mut self) -> Result<()> {
        let unknown = self.dict.tensors.keys();
        let unknown = unknown.filter(|name| !self.known.contains(*name));
        self.error.unexpected = unknown.cloned().collect();
        match self.error.is_empty() {
            true => Ok(()),
            false => Err(self.error.into()),
        }
    }
}

impl Snapshot {
    /// The same where the parameter is, in the types that are kept for it.
    fn placed(self, parameter: &Parameter) -> Result<Self> {
        let place = |tensor: Tensor, dtype: DType| -> Result<Tensor> {
            Ok(tensor.to_dtype(dtype)?.to_device(parameter.var.device())?)
        };
        let types = parameter.kept.iter().map(|(_, dtype)| *dtype);
        let tensors = self.tensors.into_iter().zip(types);
        Ok(Self {
            step: self.step,
            tensors: tensors
                .map(|(tensor, dtype)| place(tensor, dtype))
                .collect::<Result<_>>()?,
            master: (self.master.map(|tensor| place(tensor, DType::F32))).transpose()?,
        })
    }
}
