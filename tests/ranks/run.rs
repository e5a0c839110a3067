//! A training that any rank can fail, and what its tests share.

use std::ops::ControlFlow::{Break, Continue};
use std::path::PathBuf;

use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor};
use candle_headroom::checkpoint::{Checkpoints, Saving};
use candle_headroom::distributed::Group;
use candle_headroom::optim::{Commit, Committed, Parameter, StateDict};
use candle_headroom::train::StepReport;
use candle_headroom::{AdaptiveTrainer, Error, Result, Sgd};

use crate::model::{Model, cut, data};

pub struct Run {
    pub model: Model,
    pub trainer: AdaptiveTrainer<Unsaved>,
    group: Group,
}

/// An optimizer whose state cannot be read.
pub struct Unsaved(pub Sgd, pub bool);

impl Commit for Unsaved {
    fn parameters(&self) -> &[Parameter] {
        self.0.parameters()
    }

    fn commit(&mut self, gradients: &GradStore) -> Result<Committed> {
        self.0.commit(gradients)
    }

    fn state(&self) -> Result<StateDict> {
        match self.1 {
            true => Err(Error::external(std::io::Error::other("state on purpose"))),
            false => self.0.state(),
        }
    }

    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        self.0.load_state(state)
    }
}

impl Run {
    pub fn new(group: &Group, seed: u64) -> Self {
        let model = Model::new(&[3, 5, 2], DType::F32, seed);
        let sgd = Sgd::builder(&model.varmap).learning_rate(0.1);
        let sgd = Unsaved(sgd.build().expect("an optimizer"), false);
        let trainer = AdaptiveTrainer::builder(sgd).group(group).build();
        Self {
            model,
            trainer: trainer.expect("a trainer"),
            group: group.clone(),
        }
    }

    pub fn step(&mut self) -> Result<StepReport> {
        self.step_with(Ok)
    }

    pub fn step_with(
        &mut self,
        f: impl Fn(Tensor) -> candle_core::Result<Tensor>,
    ) -> Result<StepReport> {
        let batch = data(7, (3, 2), DType::F32, self.trainer.updates());
        let own = cut(&batch, self.group.share(7));
        let model = &self.model;
        self.trainer.step(&own, |(x, y), _| f(model.loss(&x, &y)?))
    }

    /// Steps, and saves if it is due.
    pub fn on(&mut self, checkpoints: &mut Checkpoints) -> Saving {
        let report = self.step().expect("a step");
        match checkpoints.after(&report, &self.trainer).expect("no error") {
            Continue(saving) => saving,
            Break(stopped) => panic!("{stopped}"),
        }
    }
}

/// A folder that rank 0 has made, and removes when it drops it.
pub fn folder(group: &Group) -> (Option<tempfile::TempDir>, PathBuf) {
    let made = (group.rank() == 0).then(|| tempfile::tempdir().expect("a folder"));
    let path = made.as_ref().map(|made| made.path().join("run"));
    let all = group.collect(Ok(vec![path])).expect("a folder");
    let path = all.into_iter().next().flatten();
    (made, path.expect("a folder"))
}

/// Asserts that all ranks have this.
pub fn same(group: &Group, what: impl std::fmt::Debug) -> String {
    let text = format!("{what:?}");
    let all = group.collect(Ok(vec![text.clone()])).expect("texts");
    assert!(all.iter().all(|other| *other == text), "{all:?}");
    text
}
