//! Gradients are added in place on the device, for each type, and without allocating.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::{AccumulatingTrainer, AdaptiveTrainer, DeviceMemory};

use crate::gpu::{MIB, fresh, gpu, simulated};
use crate::support::{self, flat, wave};

/// The window's mean gradient after four micro-batches of unequal weight; the graph makes its gradients strided.
fn mean_gradient(device: &Device, dtype: DType) -> (DType, Vec<f64>) {
    let weight = wave(300, 3, dtype).unwrap().reshape((20, 15)).unwrap();
    let var = Var::from_tensor(&weight.to_device(device).unwrap()).unwrap();
    let mut accumulator = support::accumulator(std::slice::from_ref(&var));
    for samples in [1usize, 4, 2, 3] {
        let x = wave(samples * 20, samples, dtype).unwrap();
        let x = x.reshape((samples, 20)).unwrap().to_device(device).unwrap();
        let product = x.matmul(var.as_tensor()).unwrap();
        let loss = product.sqr().unwrap().sum(1).unwrap().mean_all().unwrap();
        accumulator.add(loss, samples).unwrap();
    }
    let gradients = accumulator.gradients().unwrap();
    let gradient = gradients.get(&var).unwrap();
    (gradient.dtype(), flat(gradient))
}

#[test]
fn each_type_as_on_the_cpu() {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    for (dtype, tolerance) in [
        (DType::F64, 1e-12),
        (DType::F32, 1e-5),
        // Each micro-batch's gradient is rounded to the type before it is added in f32.
        (DType::F16, 2e-3),
        (DType::BF16, 2e-2),
    ] {
        let (found, on_device) = mean_gradient(&device, dtype);
        let (expected, on_host) = mean_gradient(&Device::Cpu, dtype);
        assert_eq!((found, expected), (dtype, dtype));
        let scale = on_host.iter().fold(0f64, |max, value| max.max(value.abs()));
        for (a, b) in on_device.iter().zip(&on_host) {
            assert!((a - b).abs() <= tolerance * scale, "{dtype:?}: {a} {b}");
        }
    }
}

/// `add` allocates what `backward` allocates and not one block more, once the buffers are there.
#[test]
fn nothing_is_allocated_for_adding() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    for dtype in [DType::F32, DType::BF16] {
        let var = Var::ones((16, 16), dtype, &device).unwrap();
        let loss = || var.sqr().unwrap().sum_all().unwrap();
        let mut accumulator = support::accumulator(std::slice::from_ref(&var));
        accumulator.add(loss(), 4).unwrap();

        let (alone, added) = (loss(), loss());
        simulator.reset_counters();
        drop(alone.backward().unwrap());
        let backward = simulator.counters().allocations;
        simulator.reset_counters();
        accumulator.add(added, 4).unwrap();
        assert_eq!(simulator.counters().allocations, backward, "{dtype:?}");
        assert!(backward > 0);
    }
}

/// Strided sources through the kernel's own walk.
#[test]
fn a_transposed_gradient_lands_in_the_right_places() {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    for (device, name) in [(&device, "device"), (&Device::Cpu, "host")] {
        let var = Var::zeros((4, 6), DType::F32, device).unwrap();
        let factors = Tensor::arange(0f32, 24., device).unwrap();
        let factors = factors.reshape((6, 4)).unwrap();
        let loss = (var.t().unwrap() * &factors).unwrap().sum_all().unwrap();
        let mut accumulator = support::accumulator(std::slice::from_ref(&var));
        accumulator.add(loss, 1).unwrap();
        let gradients = accumulator.gradients().unwrap();
        let expected = factors.t().unwrap().contiguous().unwrap();
        assert_eq!(
            flat(gradients.get(&var).unwrap()),
            flat(&expected),
            "{name}"
        );
    }
}

/// From a graph that turns and cuts.
#[test]
fn odd_gradients_as_on_the_cpu() {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    let gradients = |device: &Device, axes: usize| {
        let dims = vec![2; axes];
        let var = Var::zeros(dims.clone(), DType::F32, device).unwrap();
        let wave = wave(1 << axes, 1, DType::F32).unwrap();
        let factors = wave.reshape(dims).unwrap().to_device(device).unwrap();
        let mut accumulator = support::accumulator(std::slice::from_ref(&var));
        for _ in 0..2 {
            let turned = var.transpose(0, axes - 1).unwrap();
            let cut = (turned * &factors).unwrap().narrow(0, 1, 1).unwrap();
            accumulator.add(cut.sum_all().unwrap(), 1).unwrap();
        }
        let gradients = accumulator.gradients().unwrap();
        flat(gradients.get(&var).unwrap())
    };
    for axes in [2, 6] {
        let (on_device, on_host) = (gradients(&device, axes), gradients(&Device::Cpu, axes));
        assert_eq!(on_device, on_host, "{axes} axes");
        assert!(on_host.iter().any(|&value| value != 0.));
    }
}

/// Both trainers refuse parameters on another device than the memory's, even if only one parameter is elsewhere.
#[test]
fn a_trainer_refuses_the_memory_of_another_device() {
    let gpu = gpu();
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let vars =
        [memory.device(), &Device::Cpu].map(|device| Var::ones(4, DType::F32, device).unwrap());
    for vars in [&vars[1..], &vars] {
        let adaptive = AdaptiveTrainer::builder(support::sgd(vars, 0.1));
        let accumulating = AccumulatingTrainer::builder(support::sgd(vars, 0.1), 2);
        for refused in [
            adaptive.memory(&memory).build().err(),
            accumulating.memory(&memory).build().err(),
        ] {
            let error = refused.expect("another device");
            assert!(
                error.is_parameter()
                    && error.to_string().starts_with("the Vars are on Cpu, not on"),
                "{error}"
            );
        }
    }
    let trainer = AccumulatingTrainer::builder(support::sgd(&vars[..1], 0.1), 2);
    assert!(trainer.memory(&memory).build().is_ok());
}

/// A report keeps its losses until they are read, and nothing that they are views of.
#[test]
fn a_loss_that_is_a_view_does_not_keep_the_whole() {
    let Some((gpu, _)) = fresh(4, 1024 * MIB) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let device = memory.device();
    let var = Var::ones(1, DType::F32, device).unwrap();
    let trainer = AdaptiveTrainer::builder(support::sgd(std::slice::from_ref(&var), 1e-3));
    let mut trainer = trainer.build().unwrap();
    let x = Tensor::ones(4, DType::F32, device).unwrap();
    let mut step = || {
        let stepped = trainer.step(&x, |x, _| {
            let mean = x.broadcast_mul(&var)?.mean_all()?.reshape(1)?;
            let others = Tensor::zeros(4 << 20, DType::F32, x.device())?; // 16 MiB
            Tensor::cat(&[&mean, &others], 0)?.get(0)
        });
        stepped.unwrap()
    };
    step();
    let before = memory.in_use().unwrap();
    let report = step();
    let kept = memory.in_use().unwrap() - before;
    assert!(kept < MIB, "{kept} bytes");
    let loss = report.loss.read().unwrap();
    assert!((loss - 0.999).abs() < 1e-6, "{loss}");
}
