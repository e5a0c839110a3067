//! What moments on the host take of the device's memory and the host's.

use candle_core::{DType, Device, Var};
use candle_headroom::AdamW;
use candle_headroom::optim::{Commit, Group, Lion};

use super::super::{bits, device};
use super::many;
use crate::gpu::simulated;
use crate::support::flat;

/// Many small parameters beside one of several chunks: the same bits, no device memory for moments, and nothing left behind.
#[test]
fn moments_on_the_host_take_no_device_memory() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    let host = || simulator.counters().live_host_bytes;
    let begin = host();
    let moved = |fraction: Option<f64>| {
        let (vars, gradients) = many(&device);
        let live = simulator.counters().live_bytes;
        let builder = AdamW::builder(vars.clone()).clip_norm(1.);
        let mut optimizer = match fraction {
            Some(fraction) => builder.moments_on_host(fraction).build().unwrap(),
            None => builder.build().unwrap(),
        };
        let on_device = simulator.counters().live_bytes - live;
        let on_host = host() - begin;
        let counted = (optimizer.state_bytes(), optimizer.host_state_bytes());
        for _ in 0..3 {
            simulator.reset_counters();
            optimizer.commit(&gradients).unwrap();
            let counters = simulator.counters();
            // As few launches, and no wait, as with moments on the device.
            assert_eq!((counters.allocations, counters.synchronizations), (0, 0));
            assert_eq!((counters.launches, host() - begin), (3, on_host));
        }
        let values: Vec<_> = vars.iter().map(|var| flat(var)).collect();
        drop(optimizer);
        assert_eq!((simulator.counters().live_bytes, host()), (live, begin));
        (bits(&values), on_device, on_host, counted)
    };
    let (values, on_device, on_host, counted) = moved(None);
    assert_eq!((on_host, counted.1), (0, 0));
    let all = counted.0;
    for fraction in [0.1, 0.5, 0.8, 1.] {
        let (bits, device_now, host_now, (state, host_state)) = moved(Some(fraction));
        assert!(bits == values, "{fraction}");
        assert_eq!(state + host_state, all);
        // The tensor goes that the simulator counts by its bytes.
        assert_eq!(on_device - device_now, host_state, "{fraction}");
        let most = host_state + 2 * 128 * 120;
        assert!((host_state..=most).contains(&host_now), "{host_now} {most}");
        assert!(host_state as f64 >= fraction * all as f64);
    }
    let (_, _, _, (state, _)) = moved(Some(1.));
    assert_eq!(state, 0);
}

/// The remedy saves the bytes that it names, and is not named again once it is taken.
#[test]
fn the_remedy_says_what_it_saves() {
    let (_gpu, device) = device();
    let remedy = |optimizer: &AdamW| {
        let remedies = optimizer.remedies();
        let found = remedies.iter().find(|r| r.advice == "moments on the host");
        found.and_then(|remedy| remedy.saves)
    };
    let (vars, _) = many(&device);
    let plain = AdamW::builder(vars.clone()).build().unwrap();
    let moved = AdamW::builder(vars.clone())
        .moments_on_host(1.)
        .build()
        .unwrap();
    assert_eq!(
        remedy(&plain),
        Some(plain.state_bytes() - moved.state_bytes())
    );
    assert_eq!(remedy(&moved), None);
    // Neither is what saves nothing on the device any more.
    let remedies = moved.remedies();
    let others = ["moments in bf16", "Sgd without momentum"];
    assert!(
        remedies
            .iter()
            .all(|r| !others.contains(&r.advice.as_ref()))
    );
    let half = AdamW::builder(vars).moments_on_host(0.5).build().unwrap();
    assert_eq!(remedy(&half), Some(half.state_bytes()));
    let on_cpu = Var::ones(3, DType::F32, &Device::Cpu).unwrap();
    assert_eq!(remedy(&AdamW::builder(vec![on_cpu]).build().unwrap()), None);
}

/// Frozen parameters keep nothing on the device or the host, and a trained one beside them keeps what it keeps alone.
#[test]
fn frozen_parameters_take_nothing() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    let base = Var::ones((512, 512), DType::F32, &device).unwrap();
    let adapter = Var::ones((512, 4), DType::F32, &device).unwrap();
    let taken = |fraction: Option<f64>| {
        let counters = simulator.counters();
        let before = (counters.live_bytes, counters.live_host_bytes);
        let group = Group::from(vec![base.clone()]);
        let builder = Lion::builder(vec![adapter.clone()]).group(group.frozen());
        let optimizer = match fraction {
            Some(fraction) => builder.moments_on_host(fraction).build().unwrap(),
            None => builder.build().unwrap(),
        };
        let counters = simulator.counters();
        let taken = counters.live_bytes - before.0;
        drop(optimizer);
        (taken, counters.live_host_bytes - before.1)
    };
    let moments = 512 * 4 * 4;
    let (on_device, on_host) = taken(None);
    // Its moment, and the engine's tables.
    assert!(
        (moments..moments + 4096).contains(&on_device),
        "{on_device}"
    );
    assert_eq!(on_host, 0);
    // The part is of the group that is trained, not of all groups together.
    assert_eq!(taken(Some(0.5)), (on_device - moments, moments));
}
