//! What regions hold in a trainer's backward pass.

use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{Fixed, Recompute};
use candle_headroom::nn::{is_recomputing, recompute};
use candle_headroom::{AdaptiveTrainer, DeviceMemory, Sgd};

use crate::support::alone;

const MIB: u64 = 1 << 20;
const REGIONS: usize = 12;
const ELEMENTS: usize = 256 << 10;

/// Gradients take the place of inputs: a trainer walks each graph back once, and a region frees its inputs on the way.
#[test]
fn inputs_go_as_gradients_arrive() {
    let _alone = alone();
    let memory = DeviceMemory::host().open().unwrap();
    let weight = |_| Var::ones(ELEMENTS, DType::F32, &Device::Cpu).unwrap();
    let weights: Vec<Var> = (0..REGIONS).map(weight).collect();
    let optimizer = Sgd::builder(weights.clone()).learning_rate(1e-3).build();
    let builder = AdaptiveTrainer::builder(optimizer.unwrap()).memory(&memory);
    let builder = builder.policy(Fixed::new(1).unwrap());
    let mut trainer = builder.recompute(Recompute::Always).build().unwrap();
    let batch = Tensor::ones((1, ELEMENTS), DType::F32, &Device::Cpu).unwrap();
    let in_second_runs = Arc::new(Mutex::new(Vec::new()));
    let mut step = || {
        in_second_runs.lock().unwrap().clear();
        trainer.step(&batch, |xs, _| {
            let mut xs = xs.clone();
            for weight in &weights {
                let (weight, memory, seen) =
                    (weight.clone(), memory.clone(), in_second_runs.clone());
                xs = recompute(&xs, move |xs| {
                    if is_recomputing() {
                        seen.lock().unwrap().push(memory.in_use().unwrap());
                    }
                    xs.broadcast_mul(&weight)
                })?;
            }
            xs.mean_all()
        })
    };
    step().unwrap(); // one-time allocations, and the checks of a first step
    step().unwrap();
    let seen = in_second_runs.lock().unwrap();
    let [first, .., last] = seen[..] else {
        panic!("{seen:?}")
    };
    assert_eq!(seen.len(), REGIONS);
    // Gradients of 11 MiB have arrived.
    assert!(last < first + 2 * MIB, "{seen:?}");
}
