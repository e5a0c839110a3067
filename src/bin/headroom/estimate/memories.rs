//! The memory that a model is to fit into.

use candle_headroom::{ByteSize, DeviceMemory, Environment};

use super::super::output::Result;

/// What CUDA's context, kernels and libraries take on a GPU, about.
const CONTEXT: u64 = 512 << 20;

/// A device's memory.
#[derive(Debug)]
pub struct Memory {
    pub name: String,
    /// Bytes that training can take.
    pub room: u64,
}

/// The memories asked for, or else those of the GPUs that this process sees.
pub fn memories(asked: &[ByteSize], is_cpu: bool) -> Result<Vec<Memory>> {
    if !asked.is_empty() {
        let named = asked.iter().map(|bytes| Memory {
            name: bytes.to_string(),
            room: match is_cpu {
                true => bytes.as_u64(),
                false => bytes.as_u64().saturating_sub(CONTEXT),
            },
        });
        return Ok(named.collect());
    }
    if is_cpu {
        let free = DeviceMemory::host().open()?.stats().free;
        let name = |room| format!("this machine, {} free", ByteSize(room));
        return Ok(free
            .into_iter()
            .map(|room| Memory {
                name: name(room),
                room,
            })
            .collect());
    }
    let report = Environment::new().check();
    let gpus = report.gpus().iter().filter(|gpu| gpu.visible);
    let gpus = gpus.filter_map(|gpu| {
        let free = gpu.memory_free?;
        let name = gpu.name.as_deref().unwrap_or("GPU");
        Some(Memory {
            name: format!("GPU {}, {name}, {} free", gpu.index, ByteSize(free)),
            room: free.saturating_sub(CONTEXT),
        })
    });
    Ok(gpus.collect())
}
