//! The buffers that a launch is given: allocations of device memory that its arguments point into. PTX has no types for pointers, so an argument
//! is taken for one if it is the address of a live allocation. Sizes and the like are far from a device's addresses.

use std::ops::Range;

use super::memory::DeviceMemory;
use crate::ptx::Kernel;

/// A pointer among a launch's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The number of the parameter.
    pub parameter: usize,
    pub address: u64,
    pub allocation: Range<u64>,
}

impl Buffer {
    /// The bytes from the pointer to the end of its allocation: the most that a kernel reads or writes from there on.
    pub fn bytes(&self) -> u64 {
        self.allocation.end - self.address
    }
}

/// The buffers of a launch, one for each pointer, also of those within structures that are passed by value.
pub fn buffers<'a>(
    kernel: &'a Kernel,
    arguments: &'a [u8],
    memory: &'a DeviceMemory,
) -> impl Iterator<Item = Buffer> + 'a {
    let parameters = kernel.params().iter().enumerate();
    let words = parameters.flat_map(move |(parameter, param)| {
        let bytes = arguments.get(param.offset..param.offset + param.size);
        // A pointer is aligned, so that its parameter begins and ends at one.
        let bytes = bytes.filter(|bytes| param.offset % 8 == 0 && bytes.len() % 8 == 0);
        let words = bytes.unwrap_or_default().as_chunks().0.iter();
        words.map(move |word| (parameter, u64::from_ne_bytes(*word)))
    });
    words.filter_map(move |(parameter, address)| {
        let allocation = memory.allocation_on_device(address)?;
        Some(Buffer {
            parameter,
            address,
            allocation,
        })
    })
}
