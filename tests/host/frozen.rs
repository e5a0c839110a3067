//! Frozen parameters cost nothing: what training adapters (LoRA) holds and takes beside a frozen base, compared with training the base.

use candle_core::{Device, Module, Result, Tensor, Var};
use candle_headroom::batch::Fixed;
use candle_headroom::optim::Group;
use candle_headroom::{AdamW, AdaptiveTrainer, DeviceMemory, nn};

use crate::support::alone;

const LAYERS: usize = 4;
/// So wide that products make no copy of a weight.
const WIDTH: usize = 1152;
const RANK: usize = 4;
const SAMPLES: usize = 8;
/// Bytes of all base weights.
const BASE: u64 = (LAYERS * WIDTH * WIDTH * 4) as u64;
/// Bytes of all adapters.
const ADAPTERS: u64 = (LAYERS * 2 * WIDTH * RANK * 4) as u64;
/// What a step of this size may hold besides: activations of a few samples, the trainer's and the test harness's small things. A fifth of
/// one base weight.
const SMALL: u64 = 1024 * 1024;

/// A linear layer and, beside it, a product of two thin ones.
struct Lora<L> {
    base: L,
    adapter: Option<[Var; 2]>,
}

impl<L: Module> Module for Lora<L> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.base.forward(x)?;
        match &self.adapter {
            Some([a, b]) => y + x.matmul(&a.t()?)?.matmul(&b.t()?)?,
            None => Ok(y),
        }
    }
}

fn random(shape: (usize, usize)) -> Tensor {
    Tensor::randn(0f32, 0.02, shape, &Device::Cpu).unwrap()
}

fn adapter() -> [Var; 2] {
    [(RANK, WIDTH), (WIDTH, RANK)].map(|shape| Var::from_tensor(&random(shape)).unwrap())
}

/// Bytes that optimizer and trainer hold after a step, and that a further step takes at its peak.
fn measure<L: Module>(layers: &[Lora<L>], trained: Vec<Var>, frozen: Vec<Var>) -> [u64; 2] {
    // The first time, products of these sizes leave buffers behind that belong to the threads.
    measure_once(layers, trained.clone(), frozen.clone());
    measure_once(layers, trained, frozen)
}

fn measure_once<L: Module>(layers: &[Lora<L>], trained: Vec<Var>, frozen: Vec<Var>) -> [u64; 2] {
    let memory = DeviceMemory::host().open().unwrap();
    let x = random((SAMPLES, WIDTH));
    let before = memory.in_use().unwrap();
    let mut builder = AdamW::builder(trained);
    if !frozen.is_empty() {
        builder = builder.group(Group::from(frozen).frozen());
    }
    let optimizer = builder.build().unwrap();
    let trainer = AdaptiveTrainer::builder(optimizer).memory(&memory);
    let mut trainer = trainer
        .policy(Fixed::new(SAMPLES).unwrap())
        .build()
        .unwrap();
    let mut step = || {
        let report = trainer.step(&x, |x, _| {
            let mut y = x;
            for layer in layers {
                y = layer.forward(&y)?;
            }
            y.sqr()?.mean_all()
        });
        report.unwrap();
    };
    // Twice, so that what is made once is there.
    step();
    step();
    let held = memory.in_use().unwrap();
    let scope = memory.peak_scope();
    step();
    [
        held.saturating_sub(before),
        scope.peak().unwrap().saturating_sub(held),
    ]
}

#[test]
fn a_frozen_base_takes_nothing() {
    let _alone = alone();
    let weights: Vec<_> = (0..LAYERS).map(|_| random((WIDTH, WIDTH))).collect();
    let as_vars: Vec<_> = weights
        .iter()
        .map(|w| Var::from_tensor(w).unwrap())
        .collect();
    let adapters: Vec<_> = weights.iter().map(|_| adapter()).collect();
    let trained = || adapters.iter().flatten().cloned().collect::<Vec<_>>();
    let with_adapters = |weights: Vec<Tensor>| {
        let layers = weights.into_iter().zip(&adapters);
        let layers = layers.map(|(weight, adapter)| Lora {
            base: nn::Linear::new(weight, None),
            adapter: Some(adapter.clone()),
        });
        layers.collect::<Vec<_>>()
    };

    let layers = as_vars.iter().map(|var| Lora {
        base: nn::Linear::new(var.as_tensor().clone(), None),
        adapter: None,
    });
    let all = measure(&layers.collect::<Vec<_>>(), as_vars.clone(), vec![]);
    let vars = as_vars.iter().map(|var| var.as_tensor().clone()).collect();
    let frozen_vars = measure(&with_adapters(vars), trained(), as_vars.clone());
    let tensors = measure(&with_adapters(weights.clone()), trained(), vec![]);
    let candles = weights.iter().zip(&adapters).map(|(weight, adapter)| Lora {
        base: candle_nn::Linear::new(weight.clone(), None),
        adapter: Some(adapter.clone()),
    });
    let candles = measure(&candles.collect::<Vec<_>>(), trained(), vec![]);
    println!("base {BASE} bytes, adapters {ADAPTERS}; held, peak of a step above that:");
    for (name, [held, peak]) in [
        ("the base is trained", all),
        ("adapters; the base as frozen Vars", frozen_vars),
        ("adapters; the base as tensors", tensors),
        (
            "adapters; the base as tensors in candle_nn's Linear",
            candles,
        ),
    ] {
        println!("  {name}: {held}, {peak}");
    }

    // Two moments for each trained element; a trainer may keep the sum of its gradients too.
    assert!(all[0] >= 2 * BASE, "{all:?}");
    for [held, _] in [frozen_vars, tensors, candles] {
        let state = 2 * ADAPTERS;
        assert!((state..state + ADAPTERS + SMALL).contains(&held), "{held}");
    }
    // No gradient of a base weight, not even for a moment; gradients of all adapters exist at once.
    let [_, peak] = tensors;
    assert!(peak < 2 * ADAPTERS + SMALL, "{peak}");
    assert!(all[1] > BASE, "{all:?}");
}
