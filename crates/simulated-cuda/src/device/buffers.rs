//! The buffers that a launch is given: allocations of device memory that its arguments point into. PTX has no types for pointers, so an argument
//! is taken for one if it is the address of a live allocation. Sizes and the like are far from a device's addresses.

use std::ops::Range;

use super::memory::DeviceMemory;
use crate::ptx::Kernel;

/// A pointer among a launch's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The number of the parameter, and the place of the pointer among the arguments' bytes.
    pub parameter: usize,
    pub offset: usize,
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
        let words = (param.offset..)
            .step_by(8)
            .zip(bytes.unwrap_or_default().as_chunks().0);
        words.map(move |(offset, word)| (parameter, offset, u64::from_ne_bytes(*word)))
    });
    words.filter_map(move |(parameter, offset, address)| {
        let allocation = memory.allocation_on_device(address)?;
        Some(Buffer {
            parameter,
            offset,
            address,
            allocation,
        })
    })
}

/// The memory of a launch whose pointers keep to their own buffers. The kernel is given addresses of its own for each pointer, far apart from each
/// other, so that a wrong index never leads into another buffer, as it may where buffers lie side by side. Pointers that it finds in memory may
/// lead anywhere, as on a device.
#[derive(Debug)]
pub struct Apart<'a> {
    memory: &'a DeviceMemory,
    buffers: Vec<Buffer>,
    /// The arguments, with the addresses of the kernel's own.
    pub arguments: Vec<u8>,
}

/// The distance of the kernel's own addresses for one buffer and for the next. Host addresses are below 2^47, and those that the interpreter
/// marks from 2^60 on: there is room for 4,095 buffers.
const APART: u64 = 1 << 48;
const MOST: usize = 4095;

impl<'a> Apart<'a> {
    pub fn new(kernel: &Kernel, arguments: &[u8], memory: &'a DeviceMemory) -> Apart<'a> {
        let buffers: Vec<Buffer> = buffers(kernel, arguments, memory).take(MOST).collect();
        let mut arguments = arguments.to_vec();
        for (buffer, distance) in buffers.iter().zip(Self::distances()) {
            let address = buffer.address + distance;
            arguments[buffer.offset..][..8].copy_from_slice(&address.to_ne_bytes());
        }
        Apart {
            memory,
            buffers,
            arguments,
        }
    }

    /// How far the kernel's own addresses are from those of each buffer.
    fn distances() -> impl Iterator<Item = u64> {
        (1..).map(|number: u64| number * APART)
    }

    /// The buffer that one of the kernel's own addresses belongs to, with its distance.
    fn buffer(&self, address: u64) -> Option<(&Buffer, u64)> {
        let number = (address / APART).checked_sub(1)?;
        let buffer = self.buffers.get(usize::try_from(number).ok()?)?;
        Some((buffer, (number + 1) * APART))
    }

    /// Where an address lies that the kernel must not access: of which argument, how large its buffer is, and how far from it.
    pub fn describe(&self, address: u64) -> Option<String> {
        let (buffer, distance) = self.buffer(address)?;
        let Buffer {
            parameter,
            allocation,
            ..
        } = buffer;
        let bytes = allocation.end - allocation.start;
        let address = address - distance;
        let place = i128::from(address) - i128::from(allocation.start);
        Some(format!(
            "address {address:#x} is byte {place} of the buffer of argument {parameter}, which has {bytes} bytes"
        ))
    }
}

impl crate::ptx::Memory for Apart<'_> {
    fn allocation(&self, address: u64) -> Option<Range<u64>> {
        self.place(address).map(|(range, _)| range)
    }

    fn place(&self, address: u64) -> Option<(Range<u64>, u64)> {
        let Some((Buffer { allocation, .. }, distance)) = self.buffer(address) else {
            return Some((self.memory.allocation(address)?, 0));
        };
        let range = allocation.start + distance..allocation.end + distance;
        Some((range, distance.wrapping_neg()))
    }
}
