//! The memory that a model is to fit into.

use candle_headroom::{ByteSize, DeviceMemory, Environment};

use super::super::output::Result;

/// What CUDA's context, kernels and libraries take on a GPU, about, in bytes.
const CONTEXT: u64 = 512 << 20;

/// GPUs of one name whose free memory differs by less are listed once, in bytes.
const NEARLY: u64 = 64 << 20;

/// A device's memory.
#[derive(Debug)]
pub struct Memory {
    pub device: String,
    pub size: String,
    /// Bytes that training can take.
    pub room: u64,
}

impl Memory {
    fn host(device: &str, bytes: u64) -> Self {
        Self {
            device: device.to_owned(),
            size: ByteSize(bytes).to_string(),
            room: bytes,
        }
    }

    fn gpu(device: String, bytes: u64) -> Self {
        let (size, context) = (ByteSize(bytes), ByteSize(CONTEXT));
        Self {
            device,
            size: format!("{size}, {context} of it for CUDA"),
            room: bytes.saturating_sub(CONTEXT),
        }
    }
}

/// The memories asked for, or else what is free on the GPUs that this process sees, or on the host.
pub fn memories(asked: &[ByteSize], is_cpu: bool) -> Result<Vec<Memory>> {
    let asked = asked.iter().map(|bytes| match is_cpu {
        true => Memory::host("the CPU", bytes.as_u64()),
        false => Memory::gpu("a GPU".to_owned(), bytes.as_u64()),
    });
    let asked: Vec<_> = asked.collect();
    if !asked.is_empty() {
        return Ok(asked);
    }
    if is_cpu {
        let free = DeviceMemory::host().open()?.stats().free;
        let host = free.map(|free| Memory::host("the CPU, by what is free", free));
        return Ok(host.into_iter().collect());
    }
    let report = Environment::new().check();
    let gpus = report.gpus().iter().filter(|gpu| gpu.visible);
    let gpus = gpus.filter_map(|gpu| Some((gpu, gpu.memory_free?)));
    let gpus: Vec<_> = gpus.collect();
    let alike =
        gpus.chunk_by(|(a, of_a), (b, of_b)| a.name == b.name && of_a.abs_diff(*of_b) < NEARLY);
    let memories = alike.filter_map(|alike| {
        let (first, free) = alike.iter().min_by_key(|(_, free)| free)?;
        let name = first.name.as_deref().unwrap_or("unknown");
        let device = match alike.len() {
            1 => format!("GPU {}, {name}, by what is free", first.index),
            count => format!("each of {count} GPUs, {name}, by what is free"),
        };
        Some(Memory::gpu(device, *free))
    });
    Ok(memories.collect())
}
