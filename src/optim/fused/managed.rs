use candle_core::{DType, Tensor, Var};

use crate::error::{OptimizerError, ParameterError, Result};
use crate::optim::Parameter;
use crate::optim::rule::{Kept, Rule};

/// A parameter of an optimizer.
#[derive(Debug, Clone)]
pub struct Managed {
    pub name: String,
    pub var: Var,
    pub group: usize,
    /// The Var's first element, for candle's in-place operations: they allocate a list of axes, which is empty for a single element,
    /// and give access to the whole storage.
    pub handle: Tensor,
    /// The offset of its elements in that storage.
    pub start: usize,
    pub len: usize,
    /// The tensors that the optimizer keeps for it, and their types.
    pub kept: Vec<(Kept, DType)>,
    pub has_master: bool,
}

impl Managed {
    pub fn new<R: Rule>(
        rule: &R,
        Parameter { name, var }: Parameter,
        group: usize,
        moments: Option<DType>,
        has_masters: bool,
    ) -> Result<Self> {
        let kept = kept_types(rule.state(var.dims()), &name, &var, moments)?;
        let Some((start, end)) = var.layout().contiguous_offsets() else {
            return Err(OptimizerError::NotContiguous(name).into());
        };
        let flat = var.as_detached_tensor().flatten_all()?;
        Ok(Self {
            handle: flat.narrow(0, 0, flat.elem_count().min(1))?,
            start,
            len: end - start,
            has_master: has_masters && matches!(var.dtype(), DType::F16 | DType::BF16),
            name,
            var,
            group,
            kept,
        })
    }

    /// Bytes of the tensors that are kept for it, without its master weights.
    pub fn kept_bytes(&self) -> u64 {
        self.kept.iter().map(bytes_of).sum()
    }

    pub fn master_bytes(&self) -> u64 {
        let elements = if self.has_master { self.len } else { 0 };
        (elements * size_of::<f32>()) as u64
    }
}

pub fn bytes_of((kept, dtype): &(Kept, DType)) -> u64 {
    let elements: usize = kept.dims.iter().product();
    (elements * dtype.size_in_bytes()) as u64
}

/// Chooses the type of each tensor of state.
fn kept_types(
    kept: Vec<Kept>,
    name: &str,
    var: &Var,
    moments: Option<DType>,
) -> Result<Vec<(Kept, DType)>> {
    let full = match var.dtype() {
        DType::F64 => DType::F64,
        DType::F32 | DType::F16 | DType::BF16 => DType::F32,
        dtype => {
            let parameter = name.to_owned();
            return Err(ParameterError::DType { parameter, dtype }.into());
        }
    };
    let moments = moments.unwrap_or(full);
    if moments != full && (moments, full) != (DType::BF16, DType::F32) {
        return Err(OptimizerError::Moments {
            parameter: name.to_owned(),
            parameter_dtype: var.dtype(),
            dtype: moments,
        }
        .into());
    }
    let kept = kept.into_iter().map(|kept| {
        let dtype = if kept.is_moment { moments } else { full };
        (kept, dtype)
    });
    Ok(kept.collect())
}
