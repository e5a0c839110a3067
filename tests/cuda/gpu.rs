//! The device that a test runs on.

use candle_core::{DType, Tensor};
use candle_headroom::DeviceMemory;
use parking_lot::{Mutex, MutexGuard};

use crate::simulator::Simulator;

pub const MIB: u64 = 1 << 20;

/// Limits, pools and faults belong to the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// A device that one test at a time holds.
pub struct Gpu {
    pub ordinal: usize,
    _alone: MutexGuard<'static, ()>,
}

/// Device 0, on the simulator or a real GPU. Tests that break a device use one of the simulator's others.
pub fn gpu() -> Gpu {
    let real = std::env::var("HEADROOM_CUDA").is_ok_and(|driver| driver == "real");
    assert!(
        real || Simulator::of(0).is_some(),
        "no simulated driver: run `. scripts/cuda-env.sh` first, or set HEADROOM_CUDA=real on a machine with a GPU"
    );
    Gpu {
        ordinal: 0,
        _alone: ALONE.lock(),
    }
}

/// A device of the simulator. `None` on a real GPU, after printing that the test is skipped.
pub fn simulated(ordinal: usize) -> Option<(Gpu, Simulator)> {
    let gpu = Gpu { ordinal, ..gpu() };
    let simulator = Simulator::of(ordinal);
    if simulator.is_none() {
        eprintln!("skipped: a real GPU cannot be made to do this");
    }
    simulator.map(|simulator| (gpu, simulator))
}

/// A device of the simulator with this capacity in bytes and no neighbour.
pub fn fresh(ordinal: usize, capacity: u64) -> Option<(Gpu, Simulator)> {
    let (gpu, simulator) = simulated(ordinal)?;
    simulator.set_capacity(capacity);
    simulator.neighbour(0);
    Some((gpu, simulator))
}

/// A tensor that takes exactly this many bytes.
pub fn bytes(memory: &DeviceMemory, bytes: u64) -> candle_core::Result<Tensor> {
    Tensor::zeros(bytes as usize, DType::U8, memory.device())
}
