//! What a step does not do: change anything when it fails, allocate, wait, or take what does not fit.

use std::fmt::Debug;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::optim::{
    Adam, Algorithm, Commit, Fused, FusedBuilder, Group, Lion, LossScale, Moments, ParamsAdam,
    ParamsAdamW, ParamsLion, ParamsSgd,
};
use candle_headroom::{AdamW, Error, Sgd};

use super::{Job, bits, device, scale};
use crate::gpu::simulated;
use crate::support::{flat, wave};

const OUT_OF_MEMORY: u32 = 2;
const NOT_READY: u32 = 600;

/// An error at any copy or launch has changed nothing, and the same call again makes the whole step.
fn every_failure<A: Algorithm + Debug>(
    params: A,
    options: impl Fn(FusedBuilder<A>) -> FusedBuilder<A>,
) {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    let build = || {
        let job = Job::new(&device, DType::F32);
        let optimizer = options(job.builder(&params)).build().unwrap();
        (job, optimizer)
    };
    let (calm_job, mut calm) = build();
    let (job, mut optimizer) = build();
    // A step before, so that there are moments; one after shows that they are what they should be.
    let both = |calm: &Fused<A>, optimizer: &Fused<A>| {
        scale(calm, &device);
        scale(optimizer, &device);
    };
    both(&calm, &optimizer);
    calm.commit(&calm_job.gradients(0)).unwrap();
    optimizer.commit(&job.gradients(0)).unwrap();
    let (mut failures, mut step) = (0, 0);
    for status in [OUT_OF_MEMORY, NOT_READY] {
        for nth in 1.. {
            step += 1;
            // Another one each time, so that there is something new to send.
            for optimizer in [&mut calm, &mut optimizer] {
                optimizer.set_learning_rate(1e-3 * step as f64);
            }
            let (expected, gradients) = (calm_job.gradients(step), job.gradients(step));
            both(&calm, &optimizer);
            let (before, told) = (job.values(), optimizer.progress().unwrap());
            simulator.fail_work(nth, 1, status);
            let outcome = optimizer.commit(&gradients);
            simulator.disarm();
            calm.commit(&expected).unwrap();
            let is_through = outcome.is_ok();
            if let Err(error) = outcome {
                let is_exhausted = matches!(error, Error::ResourceExhausted(_));
                assert_eq!(is_exhausted, status == OUT_OF_MEMORY, "{error}");
                assert_eq!(job.values(), before, "{params:?} at {nth}");
                assert_eq!(optimizer.progress().unwrap(), told);
                failures += 1;
                optimizer.commit(&gradients).unwrap();
            }
            assert_eq!(
                bits(&job.values()),
                bits(&calm_job.values()),
                "{params:?} at {nth}"
            );
            assert_eq!(optimizer.progress().unwrap(), calm.progress().unwrap());
            if is_through {
                break;
            }
        }
    }
    assert!(failures >= 6, "{failures}");
    // All moments, in another step.
    both(&calm, &optimizer);
    calm.commit(&calm_job.gradients(99)).unwrap();
    optimizer.commit(&job.gradients(99)).unwrap();
    assert_eq!(bits(&job.values()), bits(&calm_job.values()));
}

#[test]
fn an_error_at_any_call_changes_nothing() {
    every_failure(ParamsAdamW::default(), |builder| builder);
    every_failure(ParamsAdamW::default(), |builder| {
        builder
            .clip_norm(1.)
            .moments(DType::BF16)
            .loss_scale(LossScale::dynamic())
    });
    every_failure(ParamsAdamW::default(), |builder| {
        builder.clip_norm(1.).moments(Moments::EightBit)
    });
    every_failure(ParamsLion::default(), |builder| builder);
    let params = ParamsSgd {
        momentum: 0.9,
        ..Default::default()
    };
    every_failure(params, |builder| builder);
}

#[test]
fn an_error_at_any_call_changes_nothing_on_the_host() {
    for fraction in [0.3, 1.] {
        let on_host = |builder: FusedBuilder<_>| builder.moments_on_host(fraction);
        every_failure(ParamsAdamW::default(), on_host);
        every_failure(ParamsAdamW::default(), |builder| {
            let builder = builder.clip_norm(1.).loss_scale(LossScale::dynamic());
            on_host(builder.moments(DType::BF16))
        });
    }
    every_failure(ParamsLion::default(), |builder| builder.moments_on_host(1.));
    let params = ParamsSgd {
        momentum: 0.9,
        ..Default::default()
    };
    every_failure(params, |builder| builder.moments_on_host(1.));
    every_failure(ParamsAdamW::default(), |builder| {
        builder.moments(Moments::EightBit).moments_on_host(1.)
    });
}

/// Nothing is allocated or waited for, and the launches are as many for one parameter as for a hundred.
#[test]
fn a_step_allocates_nothing_and_waits_for_nothing() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    let step = |parameters: usize| {
        let vars = (0..parameters).map(|_| Var::ones((3, 2), DType::F32, &device).unwrap());
        let vars: Vec<_> = vars.collect();
        let mut gradients = GradStore::default();
        for var in &vars {
            gradients.insert(var, Tensor::ones((3, 2), DType::F32, &device).unwrap());
        }
        let group = || Group::from(vars.clone());
        let mut adamw = AdamW::builder(group())
            .params(ParamsAdamW::default())
            .build()
            .unwrap();
        let clipped = AdamW::builder(group());
        let mut clipped = clipped.clip_norm(1.).build().unwrap();
        let mut adam = Adam::builder(group())
            .params(ParamsAdam::default())
            .build()
            .unwrap();
        let mut lion = Lion::builder(group())
            .params(ParamsLion::default())
            .build()
            .unwrap();
        let mut sgd = Sgd::builder(group())
            .params(ParamsSgd::default())
            .build()
            .unwrap();
        let mut commits: Vec<Box<dyn FnMut()>> = vec![
            Box::new(|| assert!(adamw.commit(&gradients).is_ok())),
            Box::new(|| assert!(clipped.commit(&gradients).is_ok())),
            Box::new(|| assert!(adam.commit(&gradients).is_ok())),
            Box::new(|| assert!(lion.commit(&gradients).is_ok())),
            Box::new(|| assert!(sgd.commit(&gradients).is_ok())),
        ];
        let mut launches = Vec::new();
        for commit in &mut commits {
            // The description of a step is sent only if it has changed.
            for copies in [1, 0] {
                simulator.reset_counters();
                commit();
                let counters = simulator.counters();
                let waits = counters.synchronizations;
                assert_eq!(
                    (counters.allocations, waits, counters.copies),
                    (0, 0, copies)
                );
                launches.push(counters.launches);
            }
        }
        launches
    };
    let launches = step(1);
    assert_eq!(launches, [2, 2, 3, 3, 2, 2, 2, 2, 2, 2]);
    assert_eq!(step(100), launches);
}

#[test]
fn a_gradient_of_too_many_axes_is_refused_beforehand() {
    let (_gpu, device) = device();
    let first = Var::ones(3, DType::F32, &device).unwrap();
    let var = Var::zeros(vec![2; 10], DType::F32, &device).unwrap();
    let mut optimizer = Sgd::builder(vec![first.clone(), var.clone()])
        .params(ParamsSgd::default())
        .build()
        .unwrap();
    let mut gradients = GradStore::default();
    gradients.insert(&first, Tensor::ones(3, DType::F32, &device).unwrap());
    let turned = Tensor::ones(vec![2; 10], DType::F32, &device).unwrap();
    let turned = turned.permute(vec![9, 8, 7, 6, 5, 4, 3, 2, 1, 0]).unwrap();
    gradients.insert(&var, turned);
    let error = optimizer.commit(&gradients).unwrap_err();
    assert!(
        error.to_string().contains("10 non-contiguous axes"),
        "{error}"
    );
    assert_eq!(flat(&first), [1.; 3]);

    // Neighbours that can be read as one axis count as one, so two axes are left of these.
    let wave = wave(1 << 10, 1, DType::F32).unwrap();
    let wave = wave
        .reshape(vec![2; 10])
        .unwrap()
        .to_device(&device)
        .unwrap();
    let merged = wave.permute(vec![5, 6, 7, 8, 9, 0, 1, 2, 3, 4]).unwrap();
    gradients.insert(&var, merged.clone());
    optimizer.set_learning_rate(1.);
    optimizer.commit(&gradients).unwrap();
    assert_eq!(flat(&var), flat(&merged.neg().unwrap()));
}

#[test]
fn a_gradient_on_another_device_is_refused_beforehand() {
    let (_gpu, device) = device();
    let vars = [(); 2].map(|()| Var::ones(3, DType::F32, &device).unwrap());
    let mut optimizer = Sgd::builder(vars.to_vec())
        .params(ParamsSgd::default())
        .build()
        .unwrap();
    let mut gradients = GradStore::default();
    gradients.insert(&vars[0], Tensor::ones(3, DType::F32, &device).unwrap());
    // candle's devices are the same only if one was made from the other.
    let others = [Device::Cpu, Device::new_cuda_with_stream(0).unwrap()];
    for other in &others {
        gradients.insert(&vars[1], Tensor::ones(3, DType::F32, other).unwrap());
        let error = optimizer.commit(&gradients).unwrap_err();
        let text = error.to_string();
        assert!(error.is_optimizer(), "{other:?}: {error}");
        assert!(text.contains("its gradient on"), "{other:?}: {error}");
        assert_eq!(flat(&vars[0]), [1.; 3]);
    }
    let mixed = [
        vars[0].clone(),
        Var::ones(3, DType::F32, &Device::Cpu).unwrap(),
    ];
    let error = Sgd::builder(mixed.to_vec())
        .params(ParamsSgd::default())
        .build()
        .unwrap_err();
    assert!(error.is_optimizer(), "{error}");
    let text = error.to_string();
    assert!(text.contains("use an optimizer for each"), "{error}");
}

/// Memory that runs out at any allocation of building one: a typed error, and nothing is left behind.
#[test]
fn a_failed_construction_leaves_nothing_behind() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    let job = Job::new(&device, DType::BF16);
    let build = || {
        job.builder(&ParamsAdamW::default())
            .clip_norm(1.)
            .loss_scale(LossScale::dynamic())
            .master_weights()
            .build()
    };
    // Modules stay loaded.
    drop(build().unwrap());
    let live = simulator.counters().live_bytes;
    simulator.reset_counters();
    drop(build().unwrap());
    let allocations = simulator.counters().allocations;
    assert!(allocations > 10, "{allocations}");
    for nth in 1..=allocations {
        simulator.fail_allocation(nth, 1);
        let error = build().unwrap_err();
        assert!(error.resource_exhausted().is_some(), "{error}");
        simulator.disarm();
        assert_eq!(simulator.counters().live_bytes, live, "at {nth}");
    }
}
