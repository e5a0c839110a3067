//! What a build with `cuda` adds to the monitor and to the report of an exhaustion: CUDA's order, and who else is on the GPU.

use candle_core::{DType, Tensor, Var};
use candle_headroom::batch::Fixed;
use candle_headroom::error::Cause;
use candle_headroom::{AdaptiveTrainer, DeviceMemory, Monitor, Sgd};

use crate::gpu::{MIB, bytes, simulated};
use crate::simulator::Simulator;

/// NVML goes by the PCI bus; candle's `cuda:0` has to be the monitor's first all the same.
#[test]
fn gpus_come_in_cudas_order() {
    let Some((_gpu, _)) = simulated(0) else {
        return;
    };
    let order = |monitor: &Monitor| -> Vec<_> {
        let gpus = monitor.sources().iter();
        gpus.filter_map(|source| Some((source.cuda?, source.uuid.clone()?)))
            .collect()
    };
    let straight = Monitor::builder().start().unwrap();
    Simulator::set_nvml_reversed(true);
    let reversed = Monitor::builder().start();
    Simulator::set_nvml_reversed(false);
    let reversed = reversed.unwrap();
    assert_eq!(straight.without_gpus(), None);
    assert_eq!(order(&straight).len(), 8);
    assert!(order(&straight).iter().map(|gpu| gpu.0).eq(0..8));
    assert_eq!(order(&reversed), order(&straight));
    assert_eq!(
        reversed.sources()[0].to_string(),
        straight.sources()[0].to_string()
    );
}

/// A step that finally fails says who else is there, what they hold, and that it would do without them.
#[test]
fn the_report_names_the_neighbours() {
    let Some((gpu, simulator)) = simulated(6) else {
        return;
    };
    simulator.set_capacity(1024 * MIB);
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let w = Var::ones(4, DType::F32, memory.device()).unwrap();
    let optimizer = Sgd::builder(vec![w.clone()])
        .learning_rate(0.1)
        .build()
        .unwrap();
    let mut trainer = AdaptiveTrainer::builder(optimizer)
        .memory(&memory)
        .policy(Fixed::new(1).unwrap())
        .build()
        .unwrap();
    let x = Tensor::ones(1, DType::F32, memory.device()).unwrap();
    let mut step = || {
        trainer.step(&x, |x, _| {
            let _activations = bytes(&memory, 512 * MIB)?;
            x.broadcast_mul(&w)?.mean_all()
        })
    };
    assert!(step().is_ok());
    memory.trim().unwrap();
    simulator.neighbour(700 * MIB);
    let failed = step();
    simulator.neighbour(0);
    let error = failed.unwrap_err();
    let exhausted = error.resource_exhausted().unwrap();
    assert_eq!(exhausted.cause, Cause::Neighbour);
    let [neighbour] = &exhausted.neighbours[..] else {
        panic!("{exhausted:#}")
    };
    assert_eq!(
        (neighbour.name.as_deref(), neighbour.bytes),
        (None, Some(700 * MIB))
    );
    let text = format!("{exhausted:#}");
    for words in [
        "\n    process 2147483646            700.0 MiB\n",
        "\n    1. the GPU without process 2147483646 (saves about 700.0 MiB)",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
}
