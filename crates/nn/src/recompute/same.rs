//! Whether the second run of a region gave what the first one did.

use std::cell::Cell;

use candle_core::{DType, Result, Tensor};

use super::error::RecomputeError;

/// Elements that are compared at a time, since a comparison happens where memory is short.
const AT_ONCE: usize = 1 << 16;
/// On a device that the host has to wait for, so many outputs of a thread are compared: what differs differs from the start.
const FIRST: u32 = 8;

thread_local! {
    static COMPARED: Cell<u32> = const { Cell::new(0) };
}

/// Fails if an output of the second run has another shape, type or other values than that of the first. Values may differ by
/// some roundings, since a sum may be split among threads in another way.
pub(super) fn check(first: &Tensor, again: &Tensor) -> Result<()> {
    if (first.shape(), first.dtype()) != (again.shape(), again.dtype()) {
        return Err(RecomputeError::differs(format!(
            "returned {:?} after {:?} in its first run: its closure may change nothing that it depends on, such as a key-value cache",
            (again.shape(), again.dtype()),
            (first.shape(), first.dtype()),
        )));
    }
    if !first.device().is_cpu() {
        let compared = COMPARED.get();
        if compared >= FIRST {
            return Ok(());
        }
        COMPARED.set(compared + 1);
    }
    let roundings = match first.dtype() {
        DType::BF16 => 4. / 128.,
        DType::F16 => 4. / 1024.,
        _ => 1e-3,
    };
    let (first, again) = (first.flatten_all()?, again.detach().flatten_all()?);
    let (mut off, mut scale) = (0f64, 0f64);
    for start in (0..first.elem_count()).step_by(AT_ONCE) {
        let len = AT_ONCE.min(first.elem_count() - start);
        let (first, again) = (first.narrow(0, start, len)?, again.narrow(0, start, len)?);
        // NaN counts as equal: the loss shows it.
        off = off.max(largest((again - &first)?)?);
        scale = scale.max(largest(first)?);
    }
    match off > roundings * scale {
        true => Err(RecomputeError::differs(format!(
            "returned values that differ by up to {off:.3e} from those of its first run, which reach {scale:.3e}: use the layers of `candle_headroom::nn`, whose dropout is the same again, and seed other randomness"
        ))),
        false => Ok(()),
    }
}

fn largest(tensor: Tensor) -> Result<f64> {
    let largest = tensor.abs()?.max(0)?;
    largest.to_dtype(DType::F64)?.to_scalar()
}
