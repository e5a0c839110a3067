//! On the device as on the CPU, bit by bit.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::optim::{
    Algorithm, Commit, Fused, FusedBuilder, Group, Moments, ParamsAdam, ParamsAdamW, ParamsLion,
    ParamsSgd,
};

use super::{Job, bits, device, scale};
use crate::support::wave;

/// What an optimizer has done to the parameters after some steps, and how far it says it is.
pub(super) fn run<A: Algorithm>(
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

pub(super) fn same<A: Algorithm>(
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

pub(super) fn nothing(_: usize, _: &Job, _: &mut GradStore) {}

const DTYPES: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// Each type, with masters, with small moments, and rounded at random.
fn each_type<A: Algorithm>(params: A) {
    let (_gpu, device) = device();
    for dtype in DTYPES {
        same(&device, dtype, params.clone(), |builder| builder, nothing);
        if dtype != DType::F64 {
            for moments in [DType::BF16.into(), Moments::EightBit] {
                let options = |builder: FusedBuilder<A>| builder.moments(moments);
                same(&device, dtype, params.clone(), options, nothing);
            }
        }
        if matches!(dtype, DType::F16 | DType::BF16) {
            let options = |builder: FusedBuilder<A>| builder.master_weights();
            same(&device, dtype, params.clone(), options, nothing);
        }
        if dtype == DType::BF16 {
            for moments in [DType::F32.into(), Moments::EightBit] {
                let options =
                    |builder: FusedBuilder<A>| builder.stochastic_rounding().moments(moments);
                same(&device, dtype, params.clone(), options, nothing);
            }
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

/// Moments of 8 bits from nothing at all to the largest that a square leaves finite, in each block.
#[test]
fn gradients_of_all_sizes_have_the_bits_of_the_cpu() {
    let (_gpu, device) = device();
    let spoil = |step: usize, job: &Job, gradients: &mut GradStore| {
        let sizes = (0..67i32 * 131).map(|i| match i % 5 {
            0 => 0.,
            sign => 10f32.powi((i * 7 + step as i32) % 62 - 44) * (sign - 2) as f32,
        });
        let sizes = Tensor::from_iter(sizes, &Device::Cpu).unwrap();
        let sizes = sizes.reshape((67, 131)).unwrap();
        gradients.insert(&job.vars[5], sizes.to_device(&job.device).unwrap());
    };
    let options = |builder: FusedBuilder<ParamsAdamW>| builder.moments(Moments::EightBit);
    same(&device, DType::F32, ParamsAdamW::default(), options, spoil);
    let options = |builder: FusedBuilder<ParamsLion>| builder.moments(Moments::EightBit);
    same(&device, DType::F32, ParamsLion::default(), options, spoil);
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

/// More chunks than a group, after a parameter of one.
#[test]
fn the_norm_of_a_large_gradient_has_the_bits_of_the_cpu() {
    let (_gpu, device) = device();
    let norm = |device: &Device| {
        let vars =
            [100, 131 * 16 * 1024 + 77].map(|len| Var::zeros(len, DType::F32, device).unwrap());
        let mut gradients = GradStore::default();
        for (phase, var) in vars.iter().enumerate() {
            let wave = wave(var.elem_count(), phase, DType::F32).unwrap();
            gradients.insert(var, wave.to_device(device).unwrap());
        }
        let builder = Fused::builder(Group::from(vars.to_vec())).params(ParamsSgd::default());
        let mut optimizer = builder.clip_norm(1.).build().unwrap();
        optimizer.commit(&gradients).unwrap();
        format!("{:?}", optimizer.progress().unwrap())
    };
    assert_eq!(norm(&device), norm(&Device::Cpu));
}
