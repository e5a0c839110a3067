use std::collections::{BTreeMap, BTreeSet};

use candle_core::{DType, Tensor};
use serde::{Deserialize, Serialize};

use super::adjustment::{Adjustment, Counters};
use super::check;
use super::managed::{Managed, Snapshot};
use crate::error::{Result, StateError};
use crate::optim::rule::{Range, Rule};
use crate::optim::{Algorithm, GroupOptions, StateDict};

/// The name of the document in a state dict's metadata.
pub const OPTIMIZER: &str = "optimizer";
pub const STEP: &str = "step";
pub const MASTER: &str = "master";

/// More than any run has, and few enough that f64 holds each.
const MOST_STEPS: u64 = 1 << 53;

/// The name of a tensor in a file.
pub fn entry(parameter: &Managed, name: &str) -> String {
    format!("{}.{name}", parameter.name)
}

/// What saved state holds besides tensors, as a JSON document. Whatever is missing stays as it is.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Saved {
    /// The optimizer's name.
    pub name: Option<String>,
    pub params: BTreeMap<String, f64>,
    pub groups: Option<Vec<GroupOptions>>,
    pub steps: u64,
    pub skipped: u64,
    pub loss_scale: Option<SavedScale>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct SavedScale {
    pub scale: f64,
    /// Steps since the scale last changed.
    pub streak: u64,
}

impl Saved {
    pub fn new<R: Rule>(
        rule: &R,
        groups: &[GroupOptions],
        counters: Counters,
        adjustment: &Adjustment,
    ) -> Self {
        let params = rule.hyper_parameters();
        Self {
            name: Some(R::NAME.to_owned()),
            params: params.map(|p| (p.name.to_owned(), p.value)).collect(),
            groups: Some(groups.to_vec()),
            steps: counters.steps,
            skipped: counters.skipped,
            loss_scale: adjustment.loss_scale.map(|_| SavedScale {
                scale: counters.scale,
                streak: counters.streak,
            }),
        }
    }
}

/// Looks saved state up and lists everything that does not fit.
pub struct Reader<'a> {
    state: &'a StateDict,
    error: StateError,
    known: BTreeSet<String>,
}

impl<'a> Reader<'a> {
    pub fn new(state: &'a StateDict) -> Self {
        Self {
            state,
            error: StateError::default(),
            known: BTreeSet::new(),
        }
    }

    /// The document besides the tensors, checked.
    pub fn saved<A: Algorithm>(&mut self) -> Saved {
        // PyTorch's files have none.
        let document = self.state.metadata.get(OPTIMIZER);
        let saved = document.map(|json| serde_json::from_str::<Saved>(json));
        let saved = saved.unwrap_or_else(|| Ok(Saved::default()));
        let saved = saved.unwrap_or_else(|error| {
            self.unfit(OPTIMIZER, &format!("cannot be read: {error}"));
            Saved::default()
        });
        if let Some(name) = saved.name.as_ref().filter(|name| **name != A::NAME) {
            self.unfit(OPTIMIZER, &format!("is {name}, not {}", A::NAME));
        }
        for (name, count) in [("steps", saved.steps), ("skipped", saved.skipped)] {
            if count > MOST_STEPS {
                self.unfit(name, &format!("is {count}, at most 2^53 is possible"));
            }
        }
        saved
    }

    pub fn algorithm<A: Algorithm>(&mut self, algorithm: &A, saved: &Saved) -> A {
        let mut loaded = algorithm.clone();
        for hyper in algorithm.hyper_parameters() {
            let value = saved.params.get(hyper.name).copied();
            match value.unwrap_or(hyper.value) {
                value if hyper.range.holds(value) => loaded.set_hyper_parameter(hyper.name, value),
                value => {
                    let allowed = hyper.range.words();
                    self.unfit(hyper.name, &format!("is {value}, not {allowed}"));
                }
            }
        }
        loaded
    }

    pub fn groups<A: Algorithm>(
        &mut self,
        groups: &[GroupOptions],
        saved: &Saved,
    ) -> Vec<GroupOptions> {
        let Some(saved) = &saved.groups else {
            return groups.to_vec();
        };
        if saved.len() != groups.len() {
            let what = format!("{} in the saved state, {} here", saved.len(), groups.len());
            self.unfit("groups:", &what);
            return groups.to_vec();
        }
        for (index, options) in saved.iter().enumerate() {
            if let Err(error) = check::group::<A>(options) {
                self.unfit(&format!("group {index}:"), &error.to_string());
            }
        }
        saved.clone()
    }

    pub fn counters(&mut self, adjustment: &Adjustment, saved: &Saved) -> Counters {
        let mut counters = Counters {
            steps: saved.steps,
            skipped: saved.skipped,
            ..Counters::new(adjustment)
        };
        if let (Some(_), Some(saved)) = (adjustment.loss_scale, &saved.loss_scale) {
            counters.streak = saved.streak;
            counters.scale = saved.scale;
            if !Range::Scale.holds(saved.scale) {
                let what = format!("is {}, not {}", saved.scale, Range::Scale.words());
                self.unfit("loss_scale", &what);
            }
        }
        counters
    }

    pub fn snapshot(&mut self, parameter: &Managed) -> Snapshot {
        let tensors = parameter.kept.iter();
        let tensors = tensors
            .filter_map(|(kept, _)| self.tensor(entry(parameter, kept.name), &kept.dims))
            .collect();
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

    /// Accepts, and ignores, the state of a frozen parameter.
    pub fn pass_over(&mut self, parameter: &Managed) {
        let kept = parameter.kept.iter().map(|(kept, _)| kept.name);
        let names = kept.chain([MASTER, STEP]);
        self.known.extend(names.map(|name| entry(parameter, name)));
    }

    fn tensor(&mut self, name: String, dims: &[usize]) -> Option<Tensor> {
        let Some(tensor) = self.state.tensors.get(&name) else {
            self.error.missing.push(name);
            return None;
        };
        let (found, dtype) = (tensor.dims(), tensor.dtype());
        if found != dims {
            self.unfit(&name, &format!("has shape {found:?}, not {dims:?}"));
        }
        if !dtype.is_float() {
            self.unfit(&name, &format!("is {dtype:?}, not floating-point"));
        }
        self.known.insert(name);
        Some(tensor.clone())
    }

    /// PyTorch keeps it as f32, this crate as i64.
    fn step(&mut self, name: String) -> u64 {
        let Some(tensor) = self.state.tensors.get(&name) else {
            self.error.missing.push(name);
            return 0;
        };
        let step = tensor
            .flatten_all()
            .and_then(|step| step.to_dtype(DType::F64)?.get(0)?.to_scalar::<f64>());
        let is_count = |step: &f64| (0. ..=MOST_STEPS as f64).contains(step) && step.fract() == 0.;
        let step = step.ok().filter(is_count);
        let step = step.filter(|_| tensor.elem_count() == 1);
        if step.is_none() {
            self.unfit(&name, "is not a number of steps");
        }
        self.known.insert(name);
        step.unwrap_or_default() as u64
    }

    pub fn unfit(&mut self, name: &str, what: &str) {
        self.error.unfit.push(format!("{name} {what}"));
    }

    pub fn finish(mut self) -> Result<()> {
        let names = self.state.tensors.keys();
        let unknown = names.filter(|name| !self.known.contains(*name));
        self.error.unexpected = unknown.cloned().collect();
        match self.error.is_empty() {
            true => Ok(()),
            false => Err(self.error.into()),
        }
    }
}
