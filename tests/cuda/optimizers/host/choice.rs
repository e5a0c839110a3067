//! The choice between the device and the host's cores.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Var};
use candle_headroom::optim::{Committed, HostUpdate, ParamsAdamW};
use candle_headroom::{AdamW, Sgd};

use super::super::{Job, bits, device, scale};
use super::{build, lives, waves};
use crate::gpu::simulated;
use crate::simulator::Simulator;
use crate::support::flat;

/// The first eight updates are measured, the faster way is kept, and room that is not needed is given back; all with the same bits. The
/// device and the cores take turns, in which each kernel takes so many microseconds longer.
fn kept(simulator: Simulator, device: &Device, slow: [u32; 2]) -> HostUpdate {
    let lens = [5, 20_000, 3];
    let (vars, gradients) = waves(device, &lens);
    let (expected, same) = waves(device, &lens);
    let before = lives(simulator).1;
    let optimizer = AdamW::builder(vars.clone()).moments_on_host(1.);
    let mut optimizer = optimizer.build().unwrap();
    let mut plain = AdamW::builder(expected.clone()).build().unwrap();
    for turn in 0..8 {
        let told = optimizer.host_update().unwrap();
        assert_eq!(told.by, HostUpdate::Fastest);
        assert!(told.staging_bytes > 0);
        simulator.set_launch_time(slow[turn % 2]);
        optimizer.commit(&gradients).unwrap();
        simulator.disarm();
        plain.commit(&same).unwrap();
    }
    let told = optimizer.host_update().unwrap();
    assert!(told.device.is_some() && told.cores.is_some());
    let is_by_cores = told.by == HostUpdate::Cores;
    assert_eq!(told.cores < told.device, is_by_cores, "{told:?}");
    assert_eq!(told.staging_bytes > 0, is_by_cores, "{told:?}");
    // Each parameter has up to three places, which begin at lines of 128 bytes, and there is the decision.
    let taken = lives(simulator).1 - before;
    let counted = optimizer.host_state_bytes() + told.staging_bytes;
    let most = counted + 3 * 128 * lens.len() as u64;
    assert!((counted..most).contains(&taken), "{taken} {counted}");
    for _ in 0..2 {
        simulator.reset_counters();
        optimizer.commit(&gradients).unwrap();
        let counters = simulator.counters();
        assert_eq!((counters.allocations, counters.copies), (0, 0));
        let [launches, waits] = if is_by_cores { [3, 1] } else { [2, 0] };
        let done = (counters.launches, counters.synchronizations);
        assert_eq!(done, (launches, waits));
        plain.commit(&same).unwrap();
    }
    // It is kept where state is loaded.
    let saved = optimizer.state().unwrap();
    optimizer.load_state(&saved).unwrap();
    assert_eq!(optimizer.host_update(), Some(told));
    let mut commit = || (optimizer.commit(&gradients), plain.commit(&same));
    assert!(matches!(commit(), (Ok(_), Ok(_))));
    let values = |vars: &[Var]| bits(&vars.iter().map(|var| flat(var)).collect::<Vec<_>>());
    assert!(values(&vars) == values(&expected));
    drop(optimizer);
    assert_eq!(lives(simulator).1, before);
    told.by
}

#[test]
fn the_faster_way_is_kept() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    let by_cores = kept(simulator, &device, [100_000, 0]);
    assert_eq!(by_cores, HostUpdate::Cores);
    let by_device = kept(simulator, &device, [0, 100_000]);
    assert_eq!(by_device, HostUpdate::Device);
}

/// Updates that are skipped, or that move none of these moments, take no turn.
#[test]
fn updates_that_move_nothing_are_not_measured() {
    let (_gpu, device) = device();
    let job = Job::new(&device, DType::F32);
    let mut optimizer = build(&job, &ParamsAdamW::default(), HostUpdate::Fastest, 1.);
    for step in 0..20 {
        let mut gradients = job.gradients(step);
        match step % 3 {
            0 => {}
            1 => {
                let infinite = job.wave(&[1101], 1, DType::F32).log().unwrap();
                gradients.insert(&job.vars[4], infinite);
            }
            _ => gradients = GradStore::default(),
        }
        assert_eq!(optimizer.host_update().unwrap().by, HostUpdate::Fastest);
        scale(&optimizer, &device);
        optimizer.commit(&gradients).unwrap();
    }
    // Seven of them count.
    let told = optimizer.host_update().unwrap();
    assert!(told.device.is_some() && told.cores.is_none(), "{told:?}");
}

/// By the cores the decision is known when the update returns.
#[test]
fn what_became_of_an_update_by_the_cores_is_known() {
    let (_gpu, device) = device();
    let job = Job::new(&device, DType::BF16);
    let mut optimizer = build(&job, &ParamsAdamW::default(), HostUpdate::Cores, 0.5);
    let mut gradients = job.gradients(0);
    scale(&optimizer, &device);
    assert_eq!(optimizer.commit(&gradients).unwrap(), Committed::Applied);
    let before = job.values();
    gradients.insert(
        &job.vars[4],
        job.wave(&[1101], 1, DType::BF16).log().unwrap(),
    );
    scale(&optimizer, &device);
    assert_eq!(optimizer.commit(&gradients).unwrap(), Committed::Skipped);
    assert_eq!(job.values(), before);
    assert_eq!(optimizer.progress().unwrap().skipped, 1);
}

/// Nothing has moved, so there is nothing to choose.
#[test]
fn without_moments_on_the_host_there_is_no_choice() {
    let (_gpu, device) = device();
    for device in [&device, &Device::Cpu] {
        let job = Job::new(device, DType::F32);
        let plain = job.builder(&ParamsAdamW::default()).build().unwrap();
        assert_eq!(plain.host_update(), None);
        let sgd = Sgd::builder(job.vars.clone()).moments_on_host(1.);
        let sgd = sgd.host_update(HostUpdate::Cores).build().unwrap();
        assert_eq!(sgd.host_update(), None);
    }
}
