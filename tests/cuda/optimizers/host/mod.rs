//! Moments in host memory: the bits of those on the device, wholly or not at all, and what they take and leave.

mod equality;
mod exhaustion;
mod faults;
mod room;
mod state;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Var};
use candle_headroom::optim::{Algorithm, Fused, LossScale};

use super::Job;
use crate::simulator::Simulator;
use crate::support::wave;

/// Vars of several chunks and of a few elements, with their gradients.
fn many(device: &Device) -> (Vec<Var>, GradStore) {
    let lens = (0..120).map(|index| match index {
        7 => 3 * 16 * 1024 + 5,
        50 => 16 * 1024,
        _ => 1 + index % 9,
    });
    waves(device, &Vec::from_iter(lens))
}

/// Vars of so many elements, with their gradients.
fn waves(device: &Device, lens: &[usize]) -> (Vec<Var>, GradStore) {
    let mut gradients = GradStore::default();
    let vars = lens.iter().enumerate().map(|(index, len)| {
        let tensor = |phase| {
            let wave = wave(*len, phase, DType::F32).unwrap();
            wave.to_device(device).unwrap()
        };
        let var = Var::from_tensor(&tensor(index)).unwrap();
        gradients.insert(&var, tensor(index + 1));
        var
    });
    (vars.collect(), gradients)
}

/// With clipping, a loss scale and master weights.
fn build<A: Algorithm>(job: &Job, params: &A, fraction: f64) -> Fused<A> {
    let builder = job.builder(params).clip_norm(1.);
    let builder = builder.loss_scale(LossScale::dynamic().interval(2));
    builder
        .master_weights()
        .moments_on_host(fraction)
        .build()
        .unwrap()
}

/// Live bytes of the device, and of page-locked memory.
fn lives(simulator: Simulator) -> (u64, u64) {
    let counters = simulator.counters();
    (counters.live_bytes, counters.live_host_bytes)
}
