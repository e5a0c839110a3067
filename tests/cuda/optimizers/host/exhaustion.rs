//! Memory that runs out on the host or the device.

use candle_core::{DType, Device};
use candle_headroom::AdamW;
use candle_headroom::error::Resource;
use candle_headroom::optim::{Commit, GroupOptions, ParamsAdamW};

use super::super::Job;
use super::lives;
use crate::gpu::simulated;
use crate::simulator::Simulator;
use crate::support::flat;

/// Fails each page-locked allocation in turn until `act` succeeds, and returns how many failed.
fn each_host_allocation(
    simulator: Simulator,
    mut act: impl FnMut() -> Result<(), candle_headroom::Error>,
) -> usize {
    for nth in 1.. {
        let before = lives(simulator);
        simulator.fail_host_allocation(nth, 1);
        let outcome = act();
        simulator.disarm();
        let Err(error) = outcome else {
            return nth as usize - 1;
        };
        let exhausted = error.resource_exhausted().unwrap();
        assert_eq!(exhausted.resource, Resource::PinnedMemory, "{error}");
        assert!(exhausted.bytes.requested > Some(0));
        assert!(
            format!("{exhausted:#}").contains("moments_on_host"),
            "{exhausted:#}"
        );
        assert_eq!(lives(simulator), before);
    }
    unreachable!()
}

/// Page-locked memory that runs out while an optimizer is built, loaded or thawed: a typed error, and all is as before.
#[test]
fn exhausted_page_locked_memory_changes_nothing() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    let job = Job::new(&device, DType::F32);
    let options = |job: &Job| job.builder(&ParamsAdamW::default()).moments_on_host(1.);
    let built = each_host_allocation(simulator, || options(&job).build().map(drop));
    assert_eq!(built, job.vars.len());

    let mut optimizer = options(&job).build().unwrap();
    optimizer.commit(&job.gradients(0)).unwrap();
    let dict = optimizer.state().unwrap();
    let exp_avg = |optimizer: &AdamW| flat(&optimizer.state().unwrap().tensors["4.exp_avg"]);
    optimizer.commit(&job.gradients(2)).unwrap();
    let before = exp_avg(&optimizer);
    assert_ne!(before, flat(&dict.tensors["4.exp_avg"]));
    let loaded = each_host_allocation(simulator, || {
        assert_eq!(exp_avg(&optimizer), before);
        optimizer.load_state(&dict)
    });
    assert_eq!(loaded, job.vars.len());
    assert_eq!(exp_avg(&optimizer), flat(&dict.tensors["4.exp_avg"]));

    let frozen = GroupOptions::default().frozen(true);
    let all = optimizer.host_state_bytes();
    optimizer.set_group(1, frozen).unwrap();
    let part = optimizer.host_state_bytes();
    assert!(part < all);
    let thawed = each_host_allocation(simulator, || {
        assert_eq!(optimizer.host_state_bytes(), part);
        optimizer.set_group(1, frozen.frozen(false))
    });
    assert_eq!((thawed, optimizer.host_state_bytes()), (2, all));
}

/// Memory that runs out on the device at any allocation of building one leaves nothing, on the host neither.
#[test]
fn a_failed_construction_leaves_nothing_on_the_host() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    let job = Job::new(&device, DType::BF16);
    let build = || {
        let builder = job.builder(&ParamsAdamW::default()).master_weights();
        builder.clip_norm(1.).moments_on_host(0.3).build()
    };
    drop(build().unwrap());
    let before = lives(simulator);
    simulator.reset_counters();
    drop(build().unwrap());
    let allocations = simulator.counters().allocations;
    assert!(allocations > 8, "{allocations}");
    for nth in 1..=allocations {
        simulator.fail_allocation(nth, 1);
        let error = build().unwrap_err();
        assert_eq!(
            error.resource_exhausted().unwrap().resource,
            Resource::DeviceMemory
        );
        simulator.disarm();
        assert_eq!(lives(simulator), before, "at {nth}");
    }
}
