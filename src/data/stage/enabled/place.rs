use candle_core::{DType, Error, Result, Shape, Storage, Tensor};

use super::element::bytes_of;
use super::slot::Slot;

/// Of the first byte of each tensor in a slot.
const ALIGNMENT: usize = 256;

/// A tensor in a slot.
#[derive(Debug)]
pub struct Place {
    pub start: usize,
    pub end: usize,
    pub dtype: DType,
    pub shape: Shape,
}

/// Where each tensor goes in a slot; `None` for one that is not on the host, or of a type that candle only stores.
pub fn places(tensors: &[&mut Tensor]) -> Vec<Option<Place>> {
    use DType::{BF16, F8E4M3, F16, F32, F64, I16, I32, I64, U8, U32};
    let mut end = 0;
    let place = |tensor: &&mut Tensor| {
        let dtype = tensor.dtype();
        let is_known = matches!(
            dtype,
            U8 | U32 | I16 | I32 | I64 | BF16 | F16 | F32 | F64 | F8E4M3
        );
        if !is_known || !tensor.device().is_cpu() {
            return None;
        }
        let start = usize::next_multiple_of(end, ALIGNMENT);
        end = start + tensor.elem_count() * dtype.size_in_bytes();
        Some(Place {
            start,
            end,
            dtype,
            shape: tensor.shape().clone(),
        })
    };
    tensors.iter().map(place).collect()
}

/// Copies tensors into a slot that nothing else uses.
pub fn fill(slot: &mut Slot, tensors: &[&mut Tensor], places: &[Option<Place>]) -> Result<()> {
    // SAFETY: the ring has waited for the copies from this slot, and it is in nobody else's hands.
    let memory = unsafe { slot.memory.write() };
    for (tensor, place) in tensors.iter().zip(places) {
        let Some(place) = place else { continue };
        let tensor = tensor.contiguous()?;
        let (storage, layout) = tensor.storage_and_layout();
        let from = match &*storage {
            Storage::Cpu(storage) => bytes_of(storage, layout),
            _ => None,
        };
        let to = memory.get_mut(place.start..place.end);
        match to.zip(from).filter(|(to, from)| to.len() == from.len()) {
            Some((to, from)) => to.copy_from_slice(from),
            None => return Err(changed()),
        }
    }
    Ok(())
}

/// An error that checks before should prevent.
pub fn changed() -> Error {
    Error::Msg("a tensor of a batch has changed meanwhile".to_owned()).bt()
}
