//! No other ranks: the feature `distributed` is off. A group cannot be made, so nothing of one is ever called.

use candle_core::Tensor;

use crate::error::{Error, Result};

/// A group of ranks.
#[derive(Debug, Clone)]
pub(crate) enum Group {}

/// This rank works for the others.
#[derive(Debug)]
pub(crate) enum Working {}

/// This rank makes calls together with the others.
#[derive(Debug)]
pub(crate) enum InStep {}

impl Group {
    pub(crate) fn rank(&self) -> usize {
        match *self {}
    }

    pub(crate) fn rank_of_several(&self) -> Option<usize> {
        match *self {}
    }

    pub(crate) fn size(&self) -> usize {
        match *self {}
    }

    pub(crate) fn beside(&self) -> &[usize] {
        match *self {}
    }

    pub(crate) fn working(&self) -> Working {
        match *self {}
    }

    pub(crate) fn in_step(&self, _: &'static str) -> InStep {
        match *self {}
    }

    pub(crate) fn broadcast(&self, _: &Tensor, _: usize) -> Result<()> {
        match *self {}
    }

    pub(crate) fn agree<T, S>(
        &self,
        _: &str,
        _: Result<T>,
        _: impl FnOnce(&T) -> S,
    ) -> Result<(T, Vec<S>)> {
        match *self {}
    }

    pub(crate) fn collect_none(&self, _: &str, _: Error) -> Error {
        match *self {}
    }
}
