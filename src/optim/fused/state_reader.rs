use std::collections::BTreeSet;

use candle_core::{DType, Tensor};

use super::adjustment::{Adjustment, Counters};
use super::check;
use super::engine::Snapshot;
use super::managed::Managed;
use crate::error::{Result, StateError};
use crate::optim::Algorithm;
use crate::optim::StateDict;
use crate::optim::group::GroupOptions;
use crate::optim::rule::Range;

pub const STEP: &str = "step";
pub const MASTER: &str = "master";

/// More than any run has, and few enough that f64 holds each.
const MOST_STEPS: u64 = 1 << 53;

/// What something that is kept for a parameter is called in a file.
pub fn entry(parameter: &Managed, name: &str) -> String {
    format!("{}.{name}", parameter.name)
}

/// Looks entries up, and keeps a list of all that is wrong with them.
pub struct Reader<'a> {
    dict: &'a StateDict,
    error: StateError,
    known: BTreeSet<String>,
}

impl<'a> Reader<'a> {
    pub fn new(dict: &'a StateDict) -> Self {
        Self {
            dict,
            error: StateError::default(),
            known: BTreeSet::new(),
        }
    }

    pub fn snapshot(&mut self, parameter: &Managed) -> Snapshot {
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
            Some(step) if (0. ..=MOST_STEPS as f64).contains(&step) && step.fract() == 0. => {
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

    pub fn algorithm<A: Algorithm>(&mut self, algorithm: &A) -> A {
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

    pub fn groups<A: Algorithm>(&mut self, groups: &[GroupOptions]) -> Vec<GroupOptions> {
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
                frozen: self.flag(&format!("group.{index}.frozen")),
            };
            if let Err(error) = check::group::<A>(&options) {
                self.unfit(&format!("group.{index}"), &error.to_string());
            }
            options
        });
        options.collect()
    }

    pub fn counters(&mut self, adjustment: &Adjustment) -> Counters {
        let mut counters = Counters::new(adjustment);
        counters.steps = self.count("steps");
        counters.skipped = self.count("skipped");
        if adjustment.loss_scale.is_some() {
            counters.streak = self.count("loss_scale_streak");
            counters.scale = self.number("loss_scale", counters.scale);
            if !Range::Scale.holds(counters.scale) {
                self.unfit("loss_scale", "is no scale");
            }
        }
        counters
    }

    fn count(&mut self, name: &str) -> u64 {
        let Some(word) = self.dict.metadata.get(name) else {
            return 0;
        };
        let count = word.parse().ok().filter(|count| *count <= MOST_STEPS);
        count.unwrap_or_else(|| {
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

    fn flag(&mut self, name: &str) -> bool {
        let number = self.number(name, 0.);
        if !Range::Flag.holds(number) {
            self.unfit(name, &format!("is {number}, not {}", Range::Flag.words()));
        }
        number == 1.
    }

    pub fn unfit(&mut self, name: &str, what: &str) {
        self.error.unfit.push(format!("{name} {what}"));
    }

    pub fn finish(mut self) -> Result<()> {
        let unknown = self.dict.tensors.keys();
        let unknown = unknown.filter(|name| !self.known.contains(*name));
        self.error.unexpected = unknown.cloned().collect();
        match self.error.is_empty() {
            true => Ok(()),
            false => Err(self.error.into()),
        }
    }
}
