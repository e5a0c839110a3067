//! What the device decides by itself: clipping, skipped steps, loss scales and counts, as on the CPU.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::optim::{
    Commit, Committed, FusedBuilder, GroupOptions, LossScale, ParamsAdamW,
};
use candle_headroom::{AdamW, Sgd};

use super::bits::{nothing, same};
use super::{Job, bits, device};
use crate::simulator::Simulator;
use crate::support::{flat, wave};

/// Runs work that must not wait for the device, and so cannot read anything back; a real GPU does not count.
fn without_waiting<T>(ordinal: usize, work: impl FnOnce() -> T) -> T {
    let simulator = Simulator::of(ordinal);
    if let Some(simulator) = simulator {
        simulator.reset_counters();
    }
    let done = work();
    if let Some(simulator) = simulator {
        assert_eq!(simulator.counters().synchronizations, 0);
    }
    done
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
    let (gpu, device) = device();
    for dtype in [DType::F32, DType::F64, DType::F16] {
        let scaled = |device: &Device| {
            let var = Var::from_tensor(&wave(4, 1, dtype).unwrap().to_device(device).unwrap());
            let var = var.unwrap();
            let scale = LossScale::fixed(1000.1);
            let builder = Sgd::builder(vec![var.clone()]);
            let optimizer = builder.loss_scale(scale).build().unwrap();
            let loss = var.sqr().unwrap().sum_all().unwrap();
            let scaled = without_waiting(gpu.ordinal, || optimizer.scale_loss(&loss).unwrap());
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
    let (gpu, device) = device();
    let job = Job::new(&device, DType::F32);
    let plain = job.builder(&ParamsAdamW::default());
    let mut plain = plain.build().unwrap();
    assert_eq!(plain.commit(&job.gradients(0)).unwrap(), Committed::Applied);
    let surveyed = job.builder(&ParamsAdamW::default()).skip_non_finite();
    let mut surveyed = surveyed.build().unwrap();
    for _ in 0..2 {
        let gradients = job.gradients(0);
        let committed = without_waiting(gpu.ordinal, || surveyed.commit(&gradients).unwrap());
        assert_eq!(committed, Committed::Unknown);
    }
    assert_eq!(surveyed.progress().unwrap().steps, 2);

    let scaled = job.builder(&ParamsAdamW::default());
    let mut scaled = scaled.loss_scale(LossScale::dynamic()).build().unwrap();
    let error = scaled.commit(&job.gradients(0)).unwrap_err();
    assert!(error.is_optimizer(), "{error}");
    assert!(error.to_string().contains("the loss was not scaled"));
}
