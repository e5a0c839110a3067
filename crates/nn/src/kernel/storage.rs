use candle_core::op::BackpropOp;
use candle_core::{DType, Device, Error, Layout, Result, Shape, Storage, Tensor, WithDType};

/// The elements of a contiguous tensor on the CPU.
pub fn slice_of<'a, T: WithDType>(
    storage: &'a Storage,
    layout: &Layout,
    name: &'static str,
) -> Result<&'a [T]> {
    let Storage::Cpu(storage) = storage else {
        return Err(mismatch(name));
    };
    let (start, end) = layout.contiguous_offsets().ok_or_else(|| mismatch(name))?;
    let values = T::cpu_storage_as_slice(storage)?.get(start..end);
    values.ok_or_else(|| mismatch(name))
}

/// The elements of a contiguous tensor among those of its storage.
pub fn slice_of_mut<'a, T>(
    values: &'a mut [T],
    layout: &Layout,
    name: &'static str,
) -> Result<&'a mut [T]> {
    let range = layout.contiguous_offsets().map(|(start, end)| start..end);
    let values = range.and_then(|range| values.get_mut(range));
    values.ok_or_else(|| mismatch(name))
}

/// A tensor outside the graph.
pub fn tensor(storage: Storage, shape: Shape) -> Tensor {
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
}

/// Fails if two types differ.
pub fn same_type(op: &'static str, lhs: DType, rhs: DType) -> Result<()> {
    match lhs == rhs {
        true => Ok(()),
        false => Err(Error::DTypeMismatchBinaryOp { lhs, rhs, op }.bt()),
    }
}

/// Fails if two devices differ.
pub fn same_device(op: &'static str, lhs: &Device, rhs: &Device) -> Result<()> {
    if lhs.same_device(rhs) {
        return Ok(());
    }
    let (lhs, rhs) = (lhs.location(), rhs.location());
    Err(Error::DeviceMismatchBinaryOp { lhs, rhs, op }.bt())
}

/// There are no kernels for a device: [`runs_on`](super::runs_on) said so.
pub fn no_kernels(name: &'static str) -> Error {
    let remedy = "for CUDA turn on the feature `cuda` of candle-headroom, as of candle-core";
    Error::Msg(format!("{name}: no kernels for this device; {remedy}")).bt()
}

/// Inputs do not match what the kernel was written for.
pub fn mismatch(name: &'static str) -> Error {
    Error::Msg(format!("{name}: inputs of unexpected number or layout")).bt()
}
