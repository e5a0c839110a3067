//! Descriptors of tensors, filters and convolutions. They belong to the process and not to a device, so that one registry holds them all.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::handle::{BAD_PARAM, DnnResult};
use crate::cublas::number::DataType;
use crate::handle::{Handle, Kind};
use crate::status::not_modelled;

/// A tensor or a filter of four dimensions: images, channels, height and width, or of a filter, outputs, inputs, height and width.
#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    pub kind: DataType,
    pub sizes: [usize; 4],
    /// Distances in elements.
    pub strides: [usize; 4],
}

impl Tensor {
    /// How many elements the tensor reaches over in memory.
    pub fn reach(&self) -> u64 {
        let dimensions = self.sizes.iter().zip(self.strides);
        dimensions.fold(1u64, |reach, (&size, stride)| {
            reach.saturating_add((size as u64 - 1).saturating_mul(stride as u64))
        })
    }

    /// The address of an element, if the first one is at `start`.
    pub fn at(&self, start: u64, indices: [usize; 4]) -> u64 {
        let element = indices.iter().zip(self.strides);
        let element: usize = element.map(|(index, stride)| index * stride).sum();
        start + element as u64 * self.kind.bytes()
    }

    /// Its bytes in memory, from its first to its last element.
    pub fn bytes(&self) -> u64 {
        self.reach() * self.kind.bytes()
    }
}

/// A convolution, of height and width.
#[derive(Clone, Copy, Debug)]
pub struct Convolution {
    pub padding: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    /// Whether the filter is mirrored, as the mathematical convolution has it.
    pub flips: bool,
    /// The type of the sums.
    pub compute: DataType,
    pub groups: usize,
}

/// A descriptor. Until it is set it holds `None`.
#[derive(Clone, Copy, Debug)]
pub enum Descriptor {
    Tensor(Option<Tensor>),
    Filter(Option<Tensor>),
    Convolution(Option<Convolution>),
}

/// The type for a `cudnnDataType_t`.
pub fn data_type(code: u32) -> DataType {
    match code {
        0 => DataType::F32,
        1 => DataType::F64,
        2 => DataType::F16,
        9 => DataType::Bf16,
        _ => not_modelled(&format!("cuDNN with cudnnDataType_t {code}")),
    }
}

#[derive(Default)]
struct Registry {
    last: u64,
    known: HashMap<u64, Descriptor>,
}

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);

fn registry() -> MutexGuard<'static, Option<Registry>> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a descriptor and returns its handle.
pub fn add(descriptor: Descriptor) -> u64 {
    let mut registry = registry();
    let registry = registry.get_or_insert_default();
    registry.last += 1;
    registry.known.insert(registry.last, descriptor);
    Handle {
        kind: Kind::Descriptor,
        device: 0,
        serial: registry.last,
    }
    .raw()
}

/// Gives `body` the descriptor of a handle.
pub fn with<T>(handle: u64, body: impl FnOnce(&mut Descriptor) -> DnnResult<T>) -> DnnResult<T> {
    let handle = Handle::decode(handle, Kind::Descriptor).map_err(|_| BAD_PARAM)?;
    let mut registry = registry();
    let known = &mut registry.get_or_insert_default().known;
    body(known.get_mut(&handle.serial).ok_or(BAD_PARAM)?)
}

/// Forgets a descriptor of the kind that `is` tells.
pub fn remove(handle: u64, is: impl FnOnce(&Descriptor) -> bool) -> DnnResult {
    let handle = Handle::decode(handle, Kind::Descriptor).map_err(|_| BAD_PARAM)?;
    let mut registry = registry();
    let known = &mut registry.get_or_insert_default().known;
    match known.get(&handle.serial).is_some_and(is) {
        true => known.remove(&handle.serial),
        false => return Err(BAD_PARAM),
    };
    Ok(())
}

/// The tensor that a descriptor was set to.
pub fn tensor(handle: u64) -> DnnResult<Tensor> {
    with(handle, |descriptor| match descriptor {
        Descriptor::Tensor(Some(tensor)) => Ok(*tensor),
        _ => Err(BAD_PARAM),
    })
}

/// The filter that a descriptor was set to.
pub fn filter(handle: u64) -> DnnResult<Tensor> {
    with(handle, |descriptor| match descriptor {
        Descriptor::Filter(Some(filter)) => Ok(*filter),
        _ => Err(BAD_PARAM),
    })
}

/// The convolution that a descriptor was set to.
pub fn convolution(handle: u64) -> DnnResult<Convolution> {
    with(handle, |descriptor| match descriptor {
        Descriptor::Convolution(Some(convolution)) => Ok(*convolution),
        _ => Err(BAD_PARAM),
    })
}
