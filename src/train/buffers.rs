//! Copies of variables that a forward pass changes by itself, so that a failed attempt leaves no trace in them, and which parameters gradients have
//! to reach.

use candle_core::{DType, Device, Tensor, TensorId, Var};

use crate::error::{Result, invalid};
use crate::names::{Patterns, is_statistic};
use crate::optim::{Commit, Parameter};

/// Variables that the forward pass changes by itself, such as BatchNorm's running statistics, each with a saved value. Saving
/// and restoring copy in place and allocate nothing.
#[derive(Debug, Default)]
pub(super) struct Buffers(Vec<(Var, Var)>);

impl Buffers {
    pub(super) fn new(tensors: &[Tensor]) -> Result<Self> {
        let buffers = tensors.iter().enumerate().map(|(index, tensor)| {
            if !tensor.is_variable() {
                return Err(invalid!(
                    Parameter,
                    "buffer {index} is a tensor but not a variable: pass the Var that the layer updates"
                ));
            }
            if !tensor.is_contiguous() {
                return Err(invalid!(
                    Parameter,
                    "buffer {index} is not contiguous: make the Var from `tensor.contiguous()?`"
                ));
            }
            let saved = Var::from_tensor(&tensor.force_contiguous()?)?;
            Ok((Var::from_tensor(tensor)?, saved))
        });
        Ok(Self(buffers.collect::<Result<_>>()?))
    }

    pub(super) fn vars(&self) -> impl Iterator<Item = &Var> {
        self.0.iter().map(|(live, _)| live)
    }

    /// The saved value of a buffer.
    pub(super) fn saved(&self, var: &Var) -> Option<&Var> {
        let mut buffers = self.0.iter();
        let found = buffers.find(|(live, _)| live.id() == var.id())?;
        Some(&found.1)
    }

    /// The bytes of one copy.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = |(_, saved): &(Var, Var)| saved.elem_count() * saved.dtype().size_in_bytes();
        self.0.iter().map(bytes).sum::<usize>() as u64
    }

    pub(super) fn save(&self) -> Result<()> {
        let mut buffers = self.0.iter();
        Ok(buffers.try_for_each(|(live, saved)| saved.set(live))?)
    }

    /// Whether a value is not the saved one.
    pub(super) fn have_changed(&self) -> Result<bool> {
        let read = |var: &Var| {
            let values = var.flatten_all()?.to_device(&Device::Cpu)?;
            let values = values.to_dtype(DType::F64)?.to_vec1::<f64>()?;
            // By their bits: NaN is not equal to itself.
            Ok::<_, candle_core::Error>(Vec::from_iter(values.into_iter().map(f64::to_bits)))
        };
        for (live, saved) in &self.0 {
            if read(live)? != read(saved)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Restores the saved values. A failure, which does not happen on the CPU, is logged: the caller already has an error.
    pub(super) fn restore(&self) {
        let mut buffers = self.0.iter();
        if let Err(error) = buffers.try_for_each(|(live, saved)| live.set(saved)) {
            tracing::error!(%error, "buffers could not be restored and may contain traces of a failed micro-batch");
        }
    }

    /// Saves the values, and restores them when the guard is dropped, also by a panic.
    pub(super) fn guard(&self) -> Result<Guard<'_>> {
        self.save()?;
        Ok(Guard(self))
    }
}

/// Restores buffers when it is dropped.
#[must_use = "it restores the buffers when it is dropped"]
pub(super) struct Guard<'a>(&'a Buffers);

impl Guard<'_> {
    /// Keeps the new values.
    pub(super) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.restore();
    }
}

/// Which parameters have to receive a gradient, and in how many updates.
#[derive(Debug, Clone)]
pub(super) struct Reach {
    pub(super) updates: usize,
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
        let (updates, allowed) = (self.updates, &self.allowed);
        format!("gradients arrive within {updates} updates, but those of {allowed:?}")
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
