//! The same batches as on the CPU, on any kind of candle's devices, however late copies are done and batches are used.

use candle_core::{DType, Device, Tensor};
use candle_headroom::DeviceMemory;
use candle_headroom::data::Loaded;

use super::{compare, held, leaked, samples};
use crate::gpu::gpu;
use crate::simulator::Simulator;

#[derive(Clone, Copy, Debug)]
enum Consumer {
    /// Reads each batch at once.
    Eager,
    /// Reads all batches when the loader is gone.
    Late,
    /// Keeps nothing and reads nothing.
    Idle,
}

struct Trial<'a> {
    /// `None` on a real GPU.
    simulator: Option<Simulator>,
    device: &'a Device,
    expected: &'a [Loaded<Vec<Tensor>>],
}

impl Trial<'_> {
    fn run(&self, workers: usize, ahead: usize, consumer: Consumer) {
        let before = self.simulator.map(held);
        let builder = samples(60).batch_cost(40).shuffle(5).epochs(2);
        let builder = builder.device(self.device).workers(workers).ahead(ahead);
        let mut loader = builder.build().unwrap();
        let mut kept = Vec::new();
        let mut count = 0;
        for batch in loader.by_ref() {
            let batch = batch.unwrap();
            let expected = &self.expected[count];
            assert_eq!(batch.indices, expected.indices);
            count += 1;
            match consumer {
                Consumer::Eager => {
                    compute(&batch, expected);
                    compare(&batch, expected, self.device).unwrap();
                }
                Consumer::Late => kept.push(batch),
                Consumer::Idle => {}
            }
            if let Some((simulator, before)) = self.simulator.zip(before.as_ref()) {
                // Each slot has the size of the largest batch, which is below 8 KiB. There is one for each batch at once, and one more.
                let slots = (ahead + 2) as u64;
                let pinned = simulator.counters().live_host_bytes - before.host_bytes;
                assert!(pinned <= slots * 8192, "{pinned} bytes with {ahead} ahead");
            }
        }
        assert_eq!(count, self.expected.len());
        drop(loader);
        for (batch, expected) in kept.iter().zip(self.expected) {
            compare(batch, expected, self.device).unwrap();
        }
        drop(kept);
        if let Some((simulator, before)) = self.simulator.zip(before) {
            leaked(simulator, &before);
        }
    }
}

/// Has kernels read the tensor of type f32.
fn compute(batch: &[Tensor], expected: &[Tensor]) {
    let sum = |tensors: &[Tensor]| {
        let tensor = &tensors[7];
        assert_eq!(tensor.dtype(), DType::F32);
        let sum = tensor.affine(2., 1.)?.sum_all()?;
        sum.to_scalar::<f32>()
    };
    // Whole numbers, so the order of the sum does not matter.
    assert_eq!(sum(batch).unwrap(), sum(expected).unwrap());
}

#[test]
fn batches_are_those_of_the_cpu() {
    let gpu = gpu();
    let simulator = Simulator::of(gpu.ordinal);
    let expected = samples(60).batch_cost(40).shuffle(5).epochs(2);
    let expected: Result<Vec<_>, _> = expected.workers(0).build().unwrap().collect();
    let expected = expected.unwrap();
    assert!(expected.len() > 20, "{}", expected.len());
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let devices = [
        memory.device().clone(),
        Device::new_cuda_with_stream(gpu.ordinal).unwrap(),
        // The stream of each thread.
        Device::new_cuda(gpu.ordinal).unwrap(),
    ];
    if let Some(simulator) = simulator {
        simulator.reset_counters();
    }
    for late in [false, true] {
        if let Some(simulator) = simulator {
            simulator.set_late(late);
        }
        for device in &devices {
            let trial = Trial {
                simulator,
                device,
                expected: &expected,
            };
            for consumer in [Consumer::Eager, Consumer::Late, Consumer::Idle] {
                for workers in 0..=3 {
                    for ahead in [1, 2, 7] {
                        trial.run(workers, ahead, consumer);
                    }
                }
            }
        }
    }
    let Some(simulator) = simulator else {
        return;
    };
    simulator.set_late(false);
    let counters = simulator.counters();
    let (checked, hazards) = (counters.copies_checked, counters.hazards);
    // Every tensor with elements of every batch, which the host waits for at last when a slot is reused or dropped.
    let tensors = 14 * expected.len() as u64;
    assert_eq!(checked, 2 * 3 * 3 * 4 * 3 * tensors);
    println!("figure: data/copies_checked = {checked} copies");
    println!("figure: data/hazards = {hazards} hazards");
    assert_eq!(hazards, 0);
    assert_eq!(counters.lost_context, 0);
}
