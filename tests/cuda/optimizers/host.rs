//! Moments in host memory: the bits of those on the device, wholly or not at all, and what they take and leave.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::AdamW;
use candle_headroom::error::Resource;
use candle_headroom::optim::{
    Algorithm, Commit, Fused, FusedBuilder, Group, GroupOptions, Lion, LossScale, Moments,
    ParamsAdafactor, ParamsAdam, ParamsAdamW, ParamsLion, ParamsSgd,
};

use super::bits::{nothing, run};
use super::{Job, bits, device, scale};
use crate::gpu::simulated;
use crate::simulator::Simulator;
use crate::support::{flat, wave};

/// The steps of `bits`, in which a group is frozen and thawed, with moments on the device and on the host.
fn same_on_the_host<A: Algorithm>(
    params: &A,
    dtype: DType,
    options: impl Fn(FusedBuilder<A>) -> FusedBuilder<A>,
    spoil: impl Fn(usize, &Job, &mut GradStore),
) {
    let (gpu, device) = device();
    let (values, told) = run(&device, dtype, params, &options, &spoil);
    let simulator = Simulator::of(gpu.ordinal);
    for (fraction, is_late) in [(0.3, false), (1., false), (1., true)] {
        let moved = |builder| options(builder).moments_on_host(fraction);
        let late = |is_late| simulator.map(|simulator| simulator.set_late(is_late));
        late(is_late);
        let (on_host, expected) = run(&device, dtype, params, &moved, &spoil);
        late(false);
        assert_eq!(told, expected, "{params:?} {dtype:?} {fraction}");
        assert_eq!(
            bits(&values),
            bits(&on_host),
            "{params:?} {dtype:?} {fraction}"
        );
    }
}

fn each_option<A: Algorithm>(params: A) {
    let loss_scale = LossScale::fixed(1024.).growth(2.).backoff(0.25).interval(2);
    let spoil = |step: usize, job: &Job, gradients: &mut GradStore| {
        if step == 2 {
            let infinite = Tensor::full(f32::INFINITY, 1101, &job.device).unwrap();
            gradients.insert(&job.vars[4], infinite.to_dtype(job.dtype).unwrap());
        }
    };
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        same_on_the_host(&params, dtype, |builder| builder, nothing);
        same_on_the_host(&params, dtype, |b| b.clip_norm(0.5), nothing);
        same_on_the_host(&params, dtype, |b| b.skip_non_finite(), spoil);
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let all = |builder: FusedBuilder<A>| {
            let builder = builder.moments(DType::BF16).master_weights();
            builder.loss_scale(loss_scale).clip_value(0.3)
        };
        same_on_the_host(&params, dtype, all, spoil);
    }
}

#[test]
fn adam_s_results_do_not_depend_on_where_moments_are() {
    each_option(ParamsAdamW {
        lr: 0.05,
        weight_decay: 0.1,
        ..Default::default()
    });
    each_option(ParamsAdam {
        lr: 0.05,
        weight_decay: 0.1,
        ..Default::default()
    });
}

#[test]
fn nor_do_lion_s_and_sgd_s() {
    each_option(ParamsLion {
        lr: 0.05,
        weight_decay: 0.1,
        ..Default::default()
    });
    each_option(ParamsSgd {
        lr: 0.05,
        momentum: 0.9,
        nesterov: true,
        ..Default::default()
    });
    // Nothing to move.
    each_option(ParamsSgd::default());
    same_on_the_host(
        &ParamsAdafactor::default(),
        DType::F32,
        |builder| builder,
        nothing,
    );
}

/// Vars of several chunks and of a few elements, with their gradients.
fn many(device: &Device) -> (Vec<Var>, GradStore) {
    let mut gradients = GradStore::default();
    let vars = (0..120).map(|index| {
        let len = match index {
            7 => 3 * 16 * 1024 + 5,
            50 => 16 * 1024,
            _ => 1 + index % 9,
        };
        let tensor = |phase| {
            wave(len, phase, DType::F32)
                .unwrap()
                .to_device(device)
                .unwrap()
        };
        let var = Var::from_tensor(&tensor(index)).unwrap();
        gradients.insert(&var, tensor(index + 1));
        var
    });
    (vars.collect(), gradients)
}

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
    let others = ["moments in bf16", "Adafactor", "Sgd without momentum"];
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

fn build<A: Algorithm>(job: &Job, params: &A, fraction: f64) -> Fused<A> {
    let builder = job.builder(params).clip_norm(1.);
    let builder = builder.loss_scale(LossScale::dynamic().interval(2));
    builder
        .master_weights()
        .moments_on_host(fraction)
        .build()
        .unwrap()
}

/// Saved with moments on the host, loaded with moments on the device or the CPU, and the other way around.
fn moves_over<A: Algorithm>(params: &A, dtype: DType) {
    let (_gpu, gpu) = device();
    let steps = |optimizer: &mut Fused<A>, job: &Job, steps: std::ops::Range<usize>| {
        for step in steps {
            scale(optimizer, &job.device);
            optimizer.commit(&job.gradients(step)).unwrap();
        }
    };
    let whole = Job::new(&Device::Cpu, dtype);
    steps(&mut build(&whole, params, 1.), &whole, 0..6);
    for (from, first) in [(&gpu, 1.), (&gpu, 0.3), (&Device::Cpu, 1.)] {
        for (to, second) in [(&gpu, 1.), (&gpu, 0.3), (&Device::Cpu, 1.)] {
            let job = Job::new(from, dtype);
            let mut saved = build(&job, params, first);
            steps(&mut saved, &job, 0..3);
            let dict = saved.state().unwrap();
            let next = Job::new(to, dtype);
            for (var, values) in next.vars.iter().zip(&job.vars) {
                var.set(&values.to_device(to).unwrap()).unwrap();
            }
            let mut loaded = build(&next, params, second);
            loaded.load_state(&dict).unwrap();
            steps(&mut loaded, &next, 3..6);
            assert_eq!(
                bits(&next.values()),
                bits(&whole.values()),
                "{params:?} {dtype:?}"
            );
        }
    }
}

#[test]
fn saved_state_does_not_depend_on_where_moments_are() {
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        moves_over(&ParamsAdamW::default(), dtype);
        moves_over(&ParamsLion::default(), dtype);
    }
}

/// Fails each page-locked allocation in turn until `act` succeeds, and returns how many failed.
fn each_host_allocation(
    simulator: Simulator,
    mut act: impl FnMut() -> Result<(), candle_headroom::Error>,
) -> usize {
    let lives = || {
        let counters = simulator.counters();
        (counters.live_bytes, counters.live_host_bytes)
    };
    for nth in 1.. {
        let before = lives();
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
        assert_eq!(lives(), before);
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
    let lives = || {
        let counters = simulator.counters();
        (counters.live_bytes, counters.live_host_bytes)
    };
    let before = lives();
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
        assert_eq!(lives(), before, "at {nth}");
    }
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

/// A device that is lost at any launch: a typed error, and host memory is given back all the same.
#[test]
fn a_lost_device_keeps_no_host_memory() {
    let Some((gpu, simulator)) = simulated(1) else {
        return;
    };
    let begin = simulator.counters();
    for (nth, at_once) in [(1, true), (1, false), (2, true), (3, true), (3, false)] {
        let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
        let job = Job::new(&device, DType::F32);
        let builder = job.builder(&ParamsAdamW::default()).clip_norm(1.);
        let mut optimizer = builder.moments_on_host(1.).build().unwrap();
        optimizer.commit(&job.gradients(0)).unwrap();
        let gradients = job.gradients(1);
        simulator.fault_at_launch(nth, 700, at_once);
        let told = optimizer.commit(&gradients).map(drop);
        let error = told
            .and_then(|()| optimizer.progress().map(drop))
            .unwrap_err();
        assert_eq!(
            error.device_fault().map(|fault| fault.code),
            Some(700),
            "{error}"
        );
        drop(optimizer);
        assert_eq!(simulator.counters().live_host_bytes, begin.live_host_bytes);
        simulator.clear_fault();
        simulator.disarm();
    }
}

/// With kernels that run as late as they may: saving waits for the update, dropping does not take the memory from under it, and a step
/// itself waits for nothing.
#[test]
fn late_kernels_find_their_moments() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    let params = ParamsAdamW::default();
    let calm = Job::new(&device, DType::F32);
    let mut plain = build(&calm, &params, 1.);
    let job = Job::new(&device, DType::F32);
    let mut optimizer = build(&job, &params, 1.);
    for step in 0..3 {
        let (expected, gradients) = (calm.gradients(step), job.gradients(step));
        scale(&plain, &device);
        scale(&optimizer, &device);
        plain.commit(&expected).unwrap();
        simulator.set_late(true);
        optimizer.commit(&gradients).unwrap();
        let saved = optimizer.state().unwrap();
        simulator.set_late(false);
        let plain = plain.state().unwrap();
        for (name, tensor) in &plain.tensors {
            assert_eq!(flat(tensor), flat(&saved.tensors[name]), "{name}");
        }
    }
    let (expected, gradients) = (calm.gradients(3), job.gradients(3));
    scale(&plain, &device);
    scale(&optimizer, &device);
    plain.commit(&expected).unwrap();
    simulator.set_late(true);
    simulator.reset_counters();
    optimizer.commit(&gradients).unwrap();
    assert_eq!(simulator.counters().synchronizations, 0);
    drop(optimizer);
    simulator.set_late(false);
    assert_eq!(simulator.counters().lost_context, 0);
    assert_eq!(bits(&job.values()), bits(&calm.values()));
}

/// Moments of 8 bits move as they are: the same bits, saved alike.
#[test]
fn moments_of_8_bits_move_too() {
    let (_gpu, device) = device();
    let moved = |fraction: Option<f64>| {
        let (vars, gradients) = many(&device);
        let builder = AdamW::builder(vars.clone()).moments(Moments::EightBit);
        let mut optimizer = match fraction {
            Some(fraction) => builder.moments_on_host(fraction).build().unwrap(),
            None => builder.build().unwrap(),
        };
        for _ in 0..3 {
            optimizer.commit(&gradients).unwrap();
            let saved = optimizer.state().unwrap();
            optimizer.load_state(&saved).unwrap();
        }
        let values: Vec<_> = vars.iter().map(|var| flat(var)).collect();
        let second = flat(&optimizer.state().unwrap().tensors["7.exp_avg_sq"]);
        let bytes = (optimizer.state_bytes(), optimizer.host_state_bytes());
        (bits(&values), second, bytes)
    };
    let (values, second, (all, none)) = moved(None);
    assert_eq!(none, 0);
    for fraction in [0.5, 1.] {
        let (bits, same, (on_device, on_host)) = moved(Some(fraction));
        assert!(bits == values && same == second, "{fraction}");
        assert_eq!(on_device + on_host, all);
        assert!(on_host as f64 >= fraction * all as f64);
    }
}

/// Those of other rules, of bf16 parameters with either kind of rounding, with masters, and under gradients that are not contiguous.
#[test]
fn moments_of_8_bits_move_with_each_option() {
    fn check<A: Algorithm>(params: A) {
        let strided = |step: usize, job: &Job, gradients: &mut GradStore| {
            let turned = job.wave(&[131, 67], 10 * step + 6, job.dtype);
            gradients.insert(&job.vars[5], turned.t().unwrap());
        };
        let small = |b: FusedBuilder<A>| b.moments(Moments::EightBit);
        same_on_the_host(&params, DType::F32, small, strided);
        let random = |b: FusedBuilder<A>| small(b).stochastic_rounding();
        same_on_the_host(&params, DType::BF16, random, strided);
        for dtype in [DType::F16, DType::BF16] {
            let masters = |b: FusedBuilder<A>| small(b).master_weights().clip_norm(0.5);
            same_on_the_host(&params, dtype, masters, strided);
        }
    }
    let lr = 0.05;
    check(ParamsAdamW {
        lr,
        ..Default::default()
    });
    check(ParamsLion {
        lr,
        ..Default::default()
    });
}
