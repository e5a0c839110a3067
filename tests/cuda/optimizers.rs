//! The fused optimizers on the device: the bits of those on the CPU, wholly or not at all, and without waiting.

use std::fmt::Debug;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::{
    Adafactor, Adam, AdamW, Algorithm, Error, Fused, FusedBuilder, Group, Lion, LossScale,
    ParamsAdafactor, ParamsAdam, ParamsAdamW, ParamsLion, ParamsSgd, Sgd,
};
use candle_nn::Optimizer;

use crate::gpu::{gpu, simulated};
use crate::support::{flat, wave};

const OUT_OF_MEMORY: u32 = 2;
const NOT_READY: u32 = 600;

fn device() -> (crate::gpu::Gpu, Device) {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    (gpu, device)
}

/// Parameters of each rank, one that is longer than a block and not a multiple of four, and their gradients.
struct Job {
    device: Device,
    dtype: DType,
    vars: Vec<Var>,
}

const SHAPES: [&[usize]; 5] = [&[5, 7], &[3], &[], &[2, 3, 4], &[1101]];

impl Job {
    fn new(device: &Device, dtype: DType) -> Self {
        let vars = SHAPES.iter().enumerate().map(|(index, shape)| {
            let wave = wave(shape.iter().product(), index, dtype).unwrap();
            let wave = wave.reshape(*shape).unwrap().to_device(device).unwrap();
            Var::from_tensor(&wave).unwrap()
        });
        Self {
            device: device.clone(),
            dtype,
            vars: vars.collect(),
        }
    }

    fn wave(&self, shape: &[usize], phase: usize, dtype: DType) -> Tensor {
        let wave = wave(shape.iter().product(), phase, dtype).unwrap();
        wave.reshape(shape)
            .unwrap()
            .to_device(&self.device)
            .unwrap()
    }

    /// The first is transposed, the fourth cut out of a larger one; the second has none in every third step.
    fn gradients(&self, step: usize) -> GradStore {
        let phase = 10 * step;
        let mut gradients = GradStore::default();
        let [matrix, vector, scalar, cube, long] = self.vars.as_slice() else {
            panic!("five parameters");
        };
        gradients.insert(matrix, self.wave(&[7, 5], phase, self.dtype).t().unwrap());
        if step % 3 != 1 {
            gradients.insert(vector, self.wave(&[3], phase + 1, self.dtype));
        }
        gradients.insert(scalar, self.wave(&[], phase + 2, self.dtype));
        let wide = self.wave(&[2, 3, 6], phase + 3, self.dtype);
        gradients.insert(cube, wide.narrow(2, 1, 4).unwrap());
        let half = matches!(self.dtype, DType::F16 | DType::BF16);
        let dtype = if half && step.is_multiple_of(2) {
            DType::F32
        } else {
            self.dtype
        };
        gradients.insert(long, self.wave(&[1101], phase + 4, dtype));
        gradients
    }

    fn groups<A: Algorithm>(&self, builder: FusedBuilder<A>) -> FusedBuilder<A> {
        let group = |from: usize, to: usize| Group::from(self.vars[from..to].to_vec());
        builder
            .group(group(0, 2))
            .group(group(2, 4).learning_rate_factor(0.5).weight_decay(0.2))
            .group(group(4, 5))
    }

    fn values(&self) -> Vec<Vec<f64>> {
        self.vars.iter().map(|var| flat(var)).collect()
    }
}

/// What an optimizer has done to the parameters after some steps, and how far it says it is.
fn run<A: Algorithm>(
    device: &Device,
    dtype: DType,
    params: &A,
    options: &impl Fn(FusedBuilder<A>) -> FusedBuilder<A>,
    spoil: &impl Fn(usize, &Job, &mut GradStore),
) -> (Vec<Vec<f64>>, String) {
    let job = Job::new(device, dtype);
    let mut optimizer = options(job.groups(Fused::builder(params.clone())))
        .build()
        .unwrap();
    let mut told = String::new();
    for step in 0..5 {
        let mut frozen = optimizer.group(2).unwrap();
        frozen.is_frozen = step == 3;
        optimizer.set_group(2, frozen).unwrap();
        let mut gradients = job.gradients(step);
        spoil(step, &job, &mut gradients);
        optimizer.commit(&gradients).unwrap();
        told += &format!("{:?}\n", optimizer.progress().unwrap());
    }
    (job.values(), told)
}

fn bits(values: &[Vec<f64>]) -> Vec<Vec<u64>> {
    let bits = |values: &Vec<f64>| values.iter().map(|value| value.to_bits()).collect();
    values.iter().map(bits).collect()
}

fn same<A: Algorithm>(
    device: &Device,
    dtype: DType,
    params: A,
    options: impl Fn(FusedBuilder<A>) -> FusedBuilder<A>,
    spoil: impl Fn(usize, &Job, &mut GradStore),
) {
    let (on_device, told) = run(device, dtype, &params, &options, &spoil);
    let (on_host, expected) = run(&Device::Cpu, dtype, &params, &options, &spoil);
    assert_eq!(told, expected, "{params:?} {dtype:?}");
    assert_eq!(
        bits(&on_device),
        bits(&on_host),
        "{params:?} {dtype:?}: {on_device:?} {on_host:?}"
    );
    let start = Job::new(&Device::Cpu, dtype).values();
    assert!(on_host.iter().zip(&start).all(|(now, then)| now != then));
}

fn nothing(_: usize, _: &Job, _: &mut GradStore) {}

const DTYPES: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// Each type, with masters, and with moments in bf16.
fn each_type<A: Algorithm>(params: A) {
    let (_gpu, device) = device();
    for dtype in DTYPES {
        same(&device, dtype, params.clone(), |builder| builder, nothing);
        if dtype != DType::F64 {
            let options = |builder: FusedBuilder<A>| builder.moments(DType::BF16);
            same(&device, dtype, params.clone(), options, nothing);
        }
        if matches!(dtype, DType::F16 | DType::BF16) {
            let options = |builder: FusedBuilder<A>| builder.master_weights();
            same(&device, dtype, params.clone(), options, nothing);
        }
    }
}

#[test]
fn adamw_has_the_bits_of_the_cpu() {
    each_type(ParamsAdamW {
        lr: 0.05,
        weight_decay: 0.1,
        ..Default::default()
    });
}

#[test]
fn adam_has_the_bits_of_the_cpu() {
    each_type(ParamsAdam {
        lr: 0.05,
        weight_decay: 0.1,
        ..Default::default()
    });
}

#[test]
fn lion_has_the_bits_of_the_cpu() {
    each_type(ParamsLion {
        lr: 0.05,
        weight_decay: 0.1,
        ..Default::default()
    });
}

#[test]
fn sgd_has_the_bits_of_the_cpu() {
    for (momentum, dampening, nesterov) in [
        (0., 0., false),
        (0.9, 0., false),
        (0.9, 0.3, false),
        (0.9, 0., true),
    ] {
        each_type(ParamsSgd {
            lr: 0.05,
            momentum,
            dampening,
            weight_decay: 0.1,
            nesterov,
        });
    }
}

/// To the last bits: only the power of the step is computed by another library.
#[test]
fn adafactor_is_as_on_the_cpu() {
    let (_gpu, device) = device();
    let params = ParamsAdafactor {
        lr: 0.05,
        weight_decay: 0.1,
        ..Default::default()
    };
    for dtype in DTYPES {
        let options = |builder: FusedBuilder<ParamsAdafactor>| builder.clip_norm(1.);
        let (on_device, told) = run(&device, dtype, &params, &options, &nothing);
        let (on_host, expected) = run(&Device::Cpu, dtype, &params, &options, &nothing);
        assert_eq!(told, expected);
        let tolerance = if dtype == DType::F64 { 1e-12 } else { 1e-6 };
        for (a, b) in on_device.iter().flatten().zip(on_host.iter().flatten()) {
            assert!(
                (a - b).abs() <= tolerance * b.abs().max(1.),
                "{dtype:?}: {a} {b}"
            );
        }
    }
}

/// The survey adds up in the CPU's order, so that even the norm has its bits.
#[test]
fn clipping_has_the_bits_of_the_cpu() {
    let (_gpu, device) = device();
    let params = ParamsAdamW {
        lr: 0.05,
        ..Default::default()
    };
    for dtype in [DType::F32, DType::F64] {
        same(
            &device,
            dtype,
            params.clone(),
            |builder| builder.clip_norm(0.5),
            nothing,
        );
        same(
            &device,
            dtype,
            params.clone(),
            |builder| builder.clip_value(0.3),
            nothing,
        );
        let both = |builder: FusedBuilder<_>| builder.clip_norm(9.).clip_value(0.3);
        same(&device, dtype, params.clone(), both, nothing);
    }
}

#[test]
fn steps_that_are_not_finite_are_skipped_as_on_the_cpu() {
    let (_gpu, device) = device();
    let spoil = |step: usize, job: &Job, gradients: &mut GradStore| {
        let Some(value) = [None, Some(f64::INFINITY), Some(f64::NAN), None, None][step] else {
            return;
        };
        let var = &job.vars[4];
        let mut values = flat(&job.wave(&[1101], step, DType::F64));
        values[1100 * (step % 2)] = value;
        let values = Tensor::new(values, &Device::Cpu)
            .unwrap()
            .to_dtype(job.dtype)
            .unwrap();
        gradients.insert(var, values.to_device(&job.device).unwrap());
    };
    let scale = LossScale {
        initial: 1024.,
        growth: 2.,
        backoff: 0.25,
        interval: 2,
    };
    for dtype in [DType::F32, DType::F16] {
        let params = ParamsAdamW {
            lr: 0.05,
            ..Default::default()
        };
        let scaled = |builder: FusedBuilder<_>| builder.loss_scale(scale);
        same(&device, dtype, params.clone(), scaled, spoil);
        let clipped = |builder: FusedBuilder<_>| builder.loss_scale(scale).clip_norm(1e-3);
        same(&device, dtype, params.clone(), clipped, spoil);
        same(
            &device,
            dtype,
            params,
            |builder| builder.skip_non_finite(),
            spoil,
        );
    }
}

#[test]
fn the_loss_is_scaled_on_the_device() {
    let (_gpu, device) = device();
    for dtype in [DType::F32, DType::F64, DType::F16] {
        let scaled = |device: &Device| {
            let var = Var::from_tensor(&wave(4, 1, dtype).unwrap().to_device(device).unwrap());
            let var = var.unwrap();
            let scale = LossScale::fixed(1000.1);
            let builder = Sgd::builder(ParamsSgd::default()).group(vec![var.clone()]);
            let optimizer = builder.loss_scale(scale).build().unwrap();
            let loss = var.sqr().unwrap().sum_all().unwrap();
            let scaled = optimizer.scale_loss(&loss).unwrap();
            let gradients = scaled.backward().unwrap();
            (scaled.dtype(), flat(gradients.get(&var).unwrap()))
        };
        assert_eq!(scaled(&device), scaled(&Device::Cpu), "{dtype:?}");
    }
}

/// Three hundred of a few elements, together with one of several chunks.
#[test]
fn many_small_ones_beside_a_large_one() {
    let (_gpu, device) = device();
    let moved = |device: &Device| {
        let vars = (0..301).map(|index| {
            let len = if index == 7 {
                2 * 16 * 1024 + 5
            } else {
                1 + index % 9
            };
            let wave = wave(len, index, DType::F32).unwrap();
            Var::from_tensor(&wave.to_device(device).unwrap()).unwrap()
        });
        let vars: Vec<_> = vars.collect();
        let builder = AdamW::builder(ParamsAdamW::default()).group(vars.clone());
        let mut optimizer = builder.clip_norm(1.).build().unwrap();
        let mut gradients = GradStore::default();
        for (index, var) in vars.iter().enumerate() {
            let wave = wave(var.elem_count(), index + 1, DType::F32).unwrap();
            gradients.insert(var, wave.to_device(device).unwrap());
        }
        optimizer.commit(&gradients).unwrap();
        let values: Vec<_> = vars.iter().map(|var| flat(var)).collect();
        (values, optimizer.progress().unwrap())
    };
    let (on_device, on_host) = (moved(&device), moved(&Device::Cpu));
    assert_eq!(on_device.1, on_host.1);
    assert!(bits(&on_device.0) == bits(&on_host.0));
}

/// Without any gradient a step is counted all the same, as on the CPU; without any but frozen ones, too.
#[test]
fn a_step_without_gradients_counts() {
    let (_gpu, device) = device();
    let told = |device: &Device| {
        let job = Job::new(device, DType::F32);
        let mut optimizer = job.groups(AdamW::builder(ParamsAdamW::default()));
        optimizer = optimizer.clip_norm(1.);
        let mut optimizer = optimizer.build().unwrap();
        optimizer.commit(&GradStore::default()).unwrap();
        assert_eq!(job.values(), Job::new(&Device::Cpu, DType::F32).values());
        let progress = optimizer.progress().unwrap();
        (progress.steps, progress.gradient_norm.map(f64::abs))
    };
    assert_eq!(told(&device), told(&Device::Cpu));
}

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
        let optimizer = options(job.groups(Fused::builder(params.clone())))
            .build()
            .unwrap();
        (job, optimizer)
    };
    let (calm_job, mut calm) = build();
    let (job, mut optimizer) = build();
    // A step before, so that there are moments; one after shows that they are what they should be.
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
    every_failure(ParamsLion::default(), |builder| builder);
    let params = ParamsSgd {
        momentum: 0.9,
        ..Default::default()
    };
    every_failure(params, |builder| builder);
    every_failure(ParamsAdafactor::default(), |builder| builder.clip_norm(1.));
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
        let mut adamw = AdamW::new(group(), ParamsAdamW::default()).unwrap();
        let clipped = AdamW::builder(ParamsAdamW::default()).group(group());
        let mut clipped = clipped.clip_norm(1.).build().unwrap();
        let mut adam = Adam::new(group(), ParamsAdam::default()).unwrap();
        let mut lion = Lion::new(group(), ParamsLion::default()).unwrap();
        let mut sgd = Sgd::new(group(), ParamsSgd::default()).unwrap();
        let mut adafactor = Adafactor::new(group(), ParamsAdafactor::default()).unwrap();
        let mut commits: Vec<Box<dyn FnMut()>> = vec![
            Box::new(|| adamw.commit(&gradients).unwrap()),
            Box::new(|| clipped.commit(&gradients).unwrap()),
            Box::new(|| adam.commit(&gradients).unwrap()),
            Box::new(|| lion.commit(&gradients).unwrap()),
            Box::new(|| sgd.commit(&gradients).unwrap()),
            Box::new(|| adafactor.commit(&gradients).unwrap()),
        ];
        let mut launches = Vec::new();
        for commit in &mut commits {
            // What a step is told is sent once, as long as it stays the same.
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
    assert_eq!(launches, [2, 2, 3, 3, 2, 2, 2, 2, 2, 2, 7, 7]);
    assert_eq!(step(100), launches);
}

#[test]
fn a_gradient_of_too_many_axes_is_refused_beforehand() {
    let (_gpu, device) = device();
    let first = Var::ones(3, DType::F32, &device).unwrap();
    let var = Var::zeros(vec![2; 10], DType::F32, &device).unwrap();
    let mut optimizer = Sgd::new(vec![first.clone(), var.clone()], ParamsSgd::default()).unwrap();
    let mut gradients = GradStore::default();
    gradients.insert(&first, Tensor::ones(3, DType::F32, &device).unwrap());
    let turned = Tensor::ones(vec![2; 10], DType::F32, &device).unwrap();
    let turned = turned.permute(vec![9, 8, 7, 6, 5, 4, 3, 2, 1, 0]).unwrap();
    gradients.insert(&var, turned);
    let error = optimizer.commit(&gradients).unwrap_err();
    assert!(error.to_string().contains("10 axes"), "{error}");
    assert_eq!(flat(&first), [1.; 3]);
}
