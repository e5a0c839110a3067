//! No other ranks: the feature `distributed` is off. They cannot be made, so nothing of them is ever called.

use super::core::Core;
use super::positions::Positions;
use super::report::{Settings, StepReport};
use crate::batch::{Engine, Origin, Processed};
use crate::distributed::Group;
use crate::error::Result;
use crate::optim::{Commit, StateDict};

/// The other ranks of a trainer.
#[derive(Debug)]
pub(super) enum Ranks {}

/// A step for which other ranks wait.
#[derive(Debug)]
pub(super) enum Turn {}

/// The batches of loaders in an update, which only other ranks compare.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Data;

pub(super) fn join<O>(
    _: Result<Core<O>>,
    group: &Group,
    _: Vec<String>,
    _: Settings,
) -> Result<Core<O>> {
    match *group {}
}

impl<O: Commit> Core<O> {
    pub(super) fn apply_together(
        &mut self,
        engine: &Engine,
        processed: &mut Processed<()>,
    ) -> Result<StepReport> {
        self.apply(engine, processed)
    }
}

impl Data {
    pub(super) fn push(&mut self, _: &Origin<'_>) {}

    pub(super) fn extend(&mut self, _: Self) {}
}

impl Turn {
    pub(super) fn fail(&self, _: String) {
        match *self {}
    }
}

impl Ranks {
    pub(super) fn rank(&self) -> usize {
        match *self {}
    }

    pub(super) fn divide(&mut self, _: &[Origin<'_>], _: &mut Positions) {
        match *self {}
    }

    pub(super) fn turn(&self) -> Turn {
        match *self {}
    }

    pub(super) fn compare(&mut self) {
        match *self {}
    }

    pub(super) fn sum(&self, _: f64) -> Result<f64> {
        match *self {}
    }

    pub(super) fn merge(&self, _: Result<StateDict>) -> Result<StateDict> {
        match *self {}
    }
}
