//! On the device as on the CPU, bit by bit.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::error::OptimizerError;
use candle_headroom::optim::{
    Algorithm, Committed, Fused, FusedBuilder, GroupOptions, LossScale, ParamsAdafactor,
    ParamsAdam, ParamsAdamW, ParamsLion, ParamsSgd,
};
use candle_headroom::{AdamW, Error, Sgd};

use super::{Job, bits, device, scale};
use crate::support::{flat, wave};

/// What an optimizer has done to the parameters after some steps, and how far it says it is.
fn run<A: Algorithm>(
    device: &Device,
    dtype: DType,
    params: &A,
    options: &impl Fn(FusedBuilder<A>) -> FusedBuilder<A>,
    spoil: &impl Fn(usize, &Job, &mut GradStore),
) -> (Vec<Vec<f64>>, String) {
    let job = Job::new(device, dtype);
    let mut optimizer = options(job.builder(params)).build().unwrap();
    let mut told = String::new();
    for step in 0..5 {
        let frozen = optimizer.groups()[2].frozen(step == 3);
        optimizer.set_group(2, frozen).unwrap();
        let mut gradients = job.gradients(step);
        spoil(step, &job, &mut gradients);
        scale(&optimizer, device);
        optimizer.commit(&gradients).unwrap();
        told += &format!("{:?}\n", optimizer.progress().unwrap());
    }
    (job.values(), told)
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

/// Matrices beyond what one block does, stacks of them, and vectors of several chunks.
#[test]
fn adafactor_takes_large_ones() {
    let (_gpu, device) = device();
    let shapes: [&[usize]; 6] = [
        &[70, 300],
        &[9, 2, 3],
        &[3, 40, 5],
        &[130, 257],
        &[2, 3, 67, 65],
        &[40_000],
    ];
    let tensor = |shape: &[usize], phase: usize, device: &Device| {
        let wave = wave(shape.iter().product(), phase, DType::F32).unwrap();
        wave.reshape(shape).unwrap().to_device(device).unwrap()
    };
    let moved = |device: &Device| {
        let vars = shapes.iter().enumerate();
        let vars = vars.map(|(i, shape)| Var::from_tensor(&tensor(shape, i, device)).unwrap());
        let vars: Vec<_> = vars.collect();
        let params = ParamsAdafactor {
            lr: 0.05,
            weight_decay: 0.1,
            ..Default::default()
        };
        let mut optimizer = Fused::builder(vars.clone()).params(params).build().unwrap();
        for step in 0..3 {
            let mut gradients = GradStore::default();
            for (index, var) in vars.iter().enumerate() {
                gradients.insert(var, tensor(var.dims(), 7 * step + index, device));
            }
            optimizer.commit(&gradients).unwrap();
        }
        let dict = optimizer.state().unwrap();
        let state = dict.tensors.values().map(flat);
        vars.iter().map(|var| flat(var)).chain(state).collect()
    };
    let (on_device, on_host): (Vec<_>, Vec<_>) = (moved(&device), moved(&Device::Cpu));
    for (a, b) in on_device.iter().flatten().zip(on_host.iter().flatten()) {
        assert!((a - b).abs() <= 1e-6 * f64::max(b.abs(), 1e-3), "{a} {b}");
    }
    assert_eq!(on_device.len(), on_host.len());
}

/// What is written to a parameter holds, and not the master from before.
#[test]
fn written_parameters_have_the_bits_of_the_cpu() {
    let (_gpu, device) = device();
    let write = |step: usize, job: &Job, _: &mut GradStore| {
        if step == 2 {
            let ones = Tensor::ones(1101, job.dtype, &job.device).unwrap();
            job.vars[4].set(&(ones * 3.).unwrap()).unwrap();
        }
    };
    let params = ParamsAdamW {
        lr: 0.01,
        ..Default::default()
    };
    for dtype in [DType::F16, DType::BF16] {
        let masters = |builder: FusedBuilder<_>| builder.master_weights();
        same(&device, dtype, params.clone(), masters, write);
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
    let scale = LossScale::fixed(1024.).growth(2.).backoff(0.25).interval(2);
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
            let builder = Sgd::builder(vec![var.clone()]);
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
        let builder = AdamW::builder(vars.clone());
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

/// A step without any gradient counts, as on the CPU, also when groups are frozen, and when all are.
#[test]
fn a_step_without_gradients_counts() {
    let (_gpu, device) = device();
    let told = |device: &Device| {
        let job = Job::new(device, DType::F32);
        let builder = job.builder(&ParamsAdamW::default());
        let mut optimizer = builder.clip_norm(1.).build().unwrap();
        optimizer.commit(&GradStore::default()).unwrap();
        for group in 0..3 {
            optimizer
                .set_group(group, GroupOptions::default().frozen(true))
                .unwrap();
            optimizer.commit(&job.gradients(group)).unwrap();
        }
        let progress = optimizer.progress().unwrap();
        assert_eq!(optimizer.state_bytes(), 0);
        let norm = progress.gradient_norm.map(f64::to_bits);
        (bits(&job.values()), progress.steps, norm)
    };
    assert_eq!(told(&device), told(&Device::Cpu));
}

/// With a survey the device decides, and nobody waits for it.
#[test]
fn what_came_of_an_update_is_known_to_the_device() {
    let (_gpu, device) = device();
    let job = Job::new(&device, DType::F32);
    let plain = job.builder(&ParamsAdamW::default());
    let mut plain = plain.build().unwrap();
    assert_eq!(plain.commit(&job.gradients(0)).unwrap(), Committed::Applied);
    let surveyed = job.builder(&ParamsAdamW::default()).skip_non_finite();
    let mut surveyed = surveyed.build().unwrap();
    assert_eq!(
        surveyed.commit(&job.gradients(0)).unwrap(),
        Committed::Unknown
    );
    assert_eq!(surveyed.progress().unwrap().steps, 1);

    let scaled = job.builder(&ParamsAdamW::default());
    let mut scaled = scaled.loss_scale(LossScale::dynamic()).build().unwrap();
    let error = scaled.commit(&job.gradients(0)).unwrap_err();
    assert!(matches!(error, Error::Optimizer(error) if *error == OptimizerError::Unscaled));
}
