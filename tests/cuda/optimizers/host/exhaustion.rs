//! Memory that runs out on the host or the device.

use candle_core::{DType, Device};
use candle_headroom::AdamW;
use candle_headroom::error::Resource;
use candle_headroom::optim::{GroupOptions, HostUpdate, ParamsAdamW};

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
    let options = |job: &Job| {
        let builder = job.builder(&ParamsAdamW::default()).moments_on_host(1.);
        builder.host_update(HostUpdate::Device)
    };
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

/// Without room for updates by the cores the device updates, unless the cores are asked for.
#[test]
fn without_room_for_the_cores_the_device_updates() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    let job = Job::new(&device, DType::BF16);
    let build = |by| {
        let builder = job.builder(&ParamsAdamW::default()).master_weights();
        builder.moments_on_host(1.).host_update(by).build()
    };
    let before = lives(simulator);
    let asked = each_host_allocation(simulator, || build(HostUpdate::Cores).map(drop));
    // The state, the copies, and the new values of each, and the decision.
    assert_eq!(asked, 3 * job.vars.len() + 1);
    for nth in job.vars.len() + 1..=asked {
        simulator.fail_host_allocation(nth as u64, 1);
        let mut optimizer = build(HostUpdate::Fastest).unwrap();
        simulator.disarm();
        let told = optimizer.host_update().unwrap();
        assert_eq!((told.by, told.staging_bytes), (HostUpdate::Device, 0));
        let taken = lives(simulator).1 - before.1;
        let state = optimizer.host_state_bytes();
        assert!(
            (state..state + 3 * 128 * 6).contains(&taken),
            "{taken} {state}"
        );
        simulator.reset_counters();
        optimizer.commit(&job.gradients(0)).unwrap();
        assert_eq!(simulator.counters().synchronizations, 0);
        // It stays so.
        let saved = optimizer.state().unwrap();
        optimizer.load_state(&saved).unwrap();
        assert_eq!(optimizer.host_update().unwrap().by, HostUpdate::Device);
        drop(optimizer);
        assert_eq!(lives(simulator), before);
    }
}

/// A group that is thawed finds no room: by the cores that is an error that changes nothing, by either the device goes on.
#[test]
fn a_thawed_group_without_room() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    let job = Job::new(&device, DType::F32);
    let frozen = GroupOptions::default().frozen(true);
    let frozen_one = |by| {
        let builder = job.builder(&ParamsAdamW::default()).moments_on_host(1.);
        let mut optimizer = builder.host_update(by).build().unwrap();
        optimizer.set_group(2, frozen).unwrap();
        optimizer
    };
    let mut optimizer = frozen_one(HostUpdate::Cores);
    let before = optimizer.host_update();
    let failed = each_host_allocation(simulator, || {
        assert_eq!(optimizer.host_update(), before);
        optimizer.set_group(2, frozen.frozen(false))
    });
    assert_eq!(failed, 2 * 3 + 1);
    let after = optimizer.host_update().unwrap();
    assert!(after.staging_bytes > before.unwrap().staging_bytes);

    let mut optimizer = frozen_one(HostUpdate::Fastest);
    simulator.fail_host_allocation(3, 1);
    optimizer.set_group(2, frozen.frozen(false)).unwrap();
    simulator.disarm();
    assert_eq!(optimizer.host_update().unwrap().by, HostUpdate::Device);
    optimizer.commit(&job.gradients(0)).unwrap();
}
