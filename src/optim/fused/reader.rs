use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

use candle_core::{DType, Tensor};
use serde::{Deserialize, Serialize};

use super::Fused;
use super::adjustment::Progress;
use super::engine::{Loaded, Snapshot};
use super::managed::Managed;
use super::setup::Setup;
use crate::error::{Result, StateError};
use crate::optim::rule::{Range, Rule};
use crate::optim::state_dict::{MASTER, OPTIMIZER, PIECES, STEP, entry};
use crate::optim::{Algorithm, GroupOptions, StateDict};

/// More steps than any run has; f64 holds each number up to it.
const MOST_STEPS: u64 = 1 << 53;

/// The JSON document in saved state. What it lacks keeps its current value.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Document {
    /// The optimizer's name.
    pub name: Option<String>,
    pub params: BTreeMap<String, f64>,
    pub groups: Option<Vec<GroupOptions>>,
    #[serde(flatten)]
    pub progress: Progress,
}

/// Reads saved state and collects everything that does not fit.
pub struct Reader<'a> {
    state: &'a StateDict,
    /// It is of this rank's elements alone.
    is_part: bool,
    error: StateError,
}

impl<'a> Reader<'a> {
    /// `own` says of which elements a part is, if this rank has a part.
    pub fn new(state: &'a StateDict, own: Option<&str>) -> Self {
        let pieces = state.metadata.get(PIECES);
        Self {
            state,
            is_part: pieces.is_some_and(|pieces| own == Some(pieces)),
            error: StateError::default(),
        }
    }

    /// Sets the hyper-parameters and the options of groups, and returns the counters. PyTorch's files do not have them.
    pub fn document<R: Rule>(&mut self, setup: &mut Setup<R>) -> Progress {
        let is_foreign = !self.is_part && self.state.metadata.contains_key(PIECES);
        let what = "is of one rank's state: put those of all ranks together by `StateDict::merge`";
        self.require(!is_foreign, PIECES, what);
        let document = self.state.metadata.get(OPTIMIZER);
        let document = document.map_or(Ok(Document::default()), |json| {
            serde_json::from_slice(json.as_bytes())
        });
        let document = document.unwrap_or_else(|error| {
            self.unfit(OPTIMIZER, format!("cannot be read: {error}"));
            Document::default()
        });
        if let Some(name) = document.name.filter(|name| name != R::NAME) {
            self.unfit(OPTIMIZER, format!("is {name}, not {}", R::NAME));
        }
        let mut rule = setup.rule.clone();
        for (name, range, value) in rule.hyper_parameters() {
            let saved = document.params.get(name).copied();
            let saved = saved.unwrap_or_else(|| value.get());
            match range.holds(saved) {
                true => value.set(saved),
                false => self.unfit(name, format!("is {saved}, not {}", range.words)),
            }
        }
        let what = "has hyper-parameters that need other state than there is";
        self.require(setup.keeps_state_of(&rule), OPTIMIZER, what);
        setup.rule = rule;
        if let Some(groups) = document.groups {
            let (saved, here) = (groups.len(), setup.groups.len());
            match saved == here {
                true => setup.groups = groups,
                false => self.unfit(
                    "groups:",
                    format!("{saved} in the saved state, {here} here"),
                ),
            }
        }
        for (index, options) in setup.groups.iter().enumerate() {
            if let Err(error) = options.check(R::NAME) {
                self.unfit(&format!("group {index}:"), error);
            }
        }
        self.progress(Progress::new(&setup.adjustment), document.progress)
    }

    fn progress(&mut self, new: Progress, saved: Progress) -> Progress {
        for (name, count) in [
            ("steps", saved.steps),
            ("skipped", saved.skipped),
            ("streak", saved.streak),
        ] {
            let what = format!("is {count}, at most 2^53 is possible");
            self.require(count <= MOST_STEPS, name, what);
        }
        let mut progress = Progress {
            steps: saved.steps,
            skipped: saved.skipped,
            ..new
        };
        if let (Some(_), Some(scale)) = (new.loss_scale, saved.loss_scale) {
            (progress.loss_scale, progress.streak) = (Some(scale), saved.streak);
            let what = format!("is {scale}, not {}", Range::SCALE.words);
            self.require(Range::SCALE.holds(scale), "loss_scale", what);
        }
        progress
    }

    /// Reads the state of one parameter. The master weights, which are its last tensor, may be missing.
    pub fn snapshot<R: Rule>(&mut self, parameter: &Managed) -> Snapshot {
        let StateDict { tensors: saved, .. } = self.state;
        let part = [parameter.ranges.iter().map(ExactSizeIterator::len).sum()];
        // A rank that has all elements of a parameter has them in its shape.
        let is_part = self.is_part && part != [parameter.len];
        let is_optional =
            |name: &str| name == MASTER && !saved.contains_key(&entry(&parameter.name, name));
        let tensors = (parameter.kept.iter())
            .filter(|held| !is_optional(held.name))
            .filter_map(|held| {
                let dims = if is_part { &part[..] } else { &held.whole };
                self.tensor(entry(&parameter.name, held.name), dims)
            });
        let tensors = tensors.collect::<Vec<_>>();
        let step = entry(&parameter.name, STEP);
        let is_ours = self.state.metadata.contains_key(OPTIMIZER);
        let step = match R::COUNTS_STEPS || is_ours || saved.contains_key(&step) {
            true => self.step(step),
            // With state, the first step was made.
            false => u64::from(!tensors.is_empty()),
        };
        Snapshot { tensors, step }
    }

    fn tensor(&mut self, name: String, dims: &[usize]) -> Option<Tensor> {
        let tensor = self.find(&name)?;
        let (found, dtype) = (tensor.dims(), tensor.dtype());
        let what = format!("has shape {found:?}, not {dims:?}");
        self.require(found == dims, &name, what);
        let what = format!("is {dtype:?}, not floating-point");
        self.require(dtype.is_float(), &name, what);
        Some(tensor.clone())
    }

    /// PyTorch saves the step as f32, this crate as i64.
    fn step(&mut self, name: String) -> u64 {
        let Some(tensor) = self.find(&name) else {
            return 0;
        };
        let read = || tensor.flatten_all()?.to_dtype(DType::F64)?.to_vec1();
        let numbers: Vec<f64> = read().unwrap_or_default();
        let is_count = |step: f64| (0. ..=MOST_STEPS as f64).contains(&step) && step.fract() == 0.;
        let is_one = matches!(*numbers, [step] if is_count(step));
        self.require(is_one, &name, "is not a number of steps");
        numbers.first().map_or(0, |step| *step as u64)
    }

    fn find(&mut self, name: &str) -> Option<&'a Tensor> {
        let tensor = self.state.tensors.get(name);
        if tensor.is_none() {
            self.error.missing.push(name.to_owned());
        }
        tensor
    }

    fn unfit(&mut self, name: &str, what: impl std::fmt::Display) {
        self.error.unfit.push(format!("{name} {what}"));
    }

    fn require(&mut self, holds: bool, name: &str, what: impl std::fmt::Display) {
        if !holds {
            self.unfit(name, what);
        }
    }

    /// Tensors of any of these parameters may be in the state; those of frozen ones are ignored.
    pub fn finish(mut self, parameters: &[Managed]) -> Result<()> {
        let names = parameters.iter().flat_map(|parameter| {
            let kept = parameter.kept.iter().map(|held| held.name);
            let names = kept.chain([MASTER, STEP]);
            names.map(|name| entry(&parameter.name, name))
        });
        let known: BTreeSet<_> = names.collect();
        let found = self.state.tensors.keys();
        let unexpected = found.filter(|name| !known.contains(*name));
        self.error.unexpected = unexpected.cloned().collect();
        match self.error.is_empty() {
            true => Ok(()),
            false => Err(self.error.into()),
        }
    }
}

impl<A: Algorithm> Fused<A> {
    pub(super) fn hyper_parameters<C: FromIterator<(String, f64)>>(&self) -> C {
        let mut rule = self.setup.rule.clone();
        let params = rule.hyper_parameters();
        params
            .map(|(name, _, value)| (name.to_owned(), value.get()))
            .collect()
    }

    /// Returns what is kept of a parameter for `setup`, which has other ranges of it, as it is saved; `None` if it gets new state.
    pub(super) fn kept(&self, setup: &Setup<A>, index: usize) -> Result<Option<Snapshot>> {
        let parameters = self.setup.parameters.get(index);
        let Some((here, there)) = parameters.zip(setup.parameters.get(index)) else {
            return Ok(None);
        };
        if there.ranges.is_empty() || setup.is_frozen(there) || !self.setup.has_state(here) {
            return Ok(None);
        }
        let saved = self.saved(index, here)?.unwrap_or_default();
        saved.cut(&here.ranges, there).map(Some)
    }

    /// Copies the state of a parameter to host memory, as it is saved; `None` if there is none.
    pub(super) fn saved(&self, index: usize, parameter: &Managed) -> Result<Option<Snapshot>> {
        let Some(mut snapshot) = self.engine.snapshot(index, parameter)? else {
            return Ok(None);
        };
        for (held, tensor) in parameter.kept.iter().zip(&mut snapshot.tensors) {
            *tensor = held.unpack(tensor)?;
        }
        Ok(Some(snapshot))
    }

    /// Replaces what there is by this state, cut as `setup` is.
    pub(super) fn load(&mut self, mut setup: Setup<A>, state: &StateDict) -> Result<()> {
        let own = self.pieces()?;
        let mut reader = Reader::new(state, own.as_deref());
        let is_part = reader.is_part;
        let progress = reader.document(&mut setup);
        let parameters = setup.parameters.iter();
        let is_left_out = |p: &Managed| setup.is_frozen(p) || is_part && p.ranges.is_empty();
        let snapshots = parameters.map(|p| (!is_left_out(p)).then(|| reader.snapshot::<A>(p)));
        let snapshots: Vec<_> = snapshots.collect();
        reader.finish(&setup.parameters)?;
        setup.check_listed()?;
        let cut = setup.parameters.iter().zip(snapshots);
        let cut = cut.map(|(parameter, snapshot)| {
            let snapshot = snapshot.filter(|_| !parameter.ranges.is_empty());
            let held = match is_part {
                true => parameter.ranges.clone(),
                false => std::iter::once(0..parameter.len).collect(),
            };
            let cut = snapshot.map(|saved| saved.cut(&held, parameter));
            cut.transpose()
        });
        let loaded = Loaded {
            snapshots: cut.collect::<Result<_>>()?,
            progress,
        };
        self.set_up(setup, Some(&loaded))?;
        // Earlier losses were multiplied by the old scale.
        self.has_scaled.store(false, Relaxed);
        Ok(())
    }
}
