use candle_core::{Tensor, TensorId};

use crate::error::{Result, invalid};
use crate::names::{Patterns, is_statistic};
use crate::optim::{Commit, Parameter};

/// Which parameters have to receive a gradient, and in how many updates.
#[derive(Debug, Clone)]
pub(super) struct Reach {
    updates: usize,
    allowed: Patterns,
    /// Variables that the forward pass changes by itself.
    buffers: Vec<TensorId>,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            updates: 1,
            allowed: Patterns::default(),
            buffers: Vec::new(),
        }
    }
}

impl Reach {
    pub(super) fn within(mut self, updates: usize) -> Self {
        self.updates = updates;
        self
    }

    pub(super) fn allow(mut self, patterns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.allowed.add(patterns);
        self
    }

    pub(super) fn with_buffers(mut self, buffers: &[Tensor]) -> Self {
        self.buffers.extend(buffers.iter().map(Tensor::id));
        self
    }

    /// Refuses settings that cannot be meant.
    pub(super) fn check<O: Commit>(&self, optimizer: &O) -> Result<()> {
        if self.updates == 0 {
            return Err(invalid!(
                Parameter,
                "`reach_within` must be at least 1 update, got 0: to check nothing, write `.allow_unreached([\"*\"])`"
            ));
        }
        let frozen = optimizer.frozen();
        let all = optimizer.parameters().iter().chain(&frozen);
        self.allowed
            .check(all.map(|parameter| parameter.name.as_str()))
    }

    /// For the comparison with other ranks.
    pub(super) fn describe(&self) -> String {
        let Self {
            updates, allowed, ..
        } = self;
        format!("gradients arrive within {updates} updates, but those of {allowed:?}")
    }

    /// The number of updates in which a parameter has to receive a gradient.
    pub(super) fn updates(&self) -> usize {
        self.updates
    }

    pub(super) fn is_buffer(&self, Parameter { name, var, .. }: &Parameter) -> bool {
        is_statistic(name) || self.buffers.contains(&var.id())
    }

    /// The variables that the forward pass changes by itself: those that the caller named, and an optimizer's running statistics.
    pub(super) fn buffers<O: Commit>(&self, optimizer: &O, named: &[Tensor]) -> Vec<Tensor> {
        let frozen = optimizer.frozen();
        let all = optimizer.parameters().iter().chain(&frozen);
        let unnamed = all.filter(|p| is_statistic(&p.name) && !self.buffers.contains(&p.var.id()));
        let unnamed = unnamed.map(|parameter| parameter.var.as_tensor().clone());
        named.iter().cloned().chain(unnamed).collect()
    }

    /// The number of updates in which this parameter may still receive its first gradient; 0 if it needs none.
    pub(super) fn awaited(&self, parameter: &Parameter) -> usize {
        match self.is_buffer(parameter) || self.allowed.has(&parameter.name) {
            true => 0,
            false => self.updates,
        }
    }
}
