//! Copies of variables that a forward pass changes by itself, so that a failed attempt leaves no trace in them.

use candle_core::{DType, Device, Tensor, Var};

use crate::error::{Result, invalid};

/// Variables that the forward pass changes by itself, such as BatchNorm's running statistics, each with a saved value. Saving
/// and restoring copy in place and allocate nothing.
#[derive(Debug)]
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
