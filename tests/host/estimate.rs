//! What an estimate says is what training takes.

use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::optim::Group;
use candle_headroom::train::Estimate;
use candle_headroom::{AdamW, AdaptiveTrainer, DeviceMemory};
use candle_nn::{Linear, Module, VarBuilder, VarMap, linear};

use crate::support::alone;

const WIDTH: usize = 512;

fn layers(varmap: &VarMap) -> Result<Vec<Linear>> {
    let vb = VarBuilder::from_varmap(varmap, DType::F32, &Device::Cpu);
    (0..3).map(|i| linear(WIDTH, WIDTH, vb.pp(i))).collect()
}

#[test]
fn an_estimate_before_the_first_step_is_what_is_held_after_it() -> candle_headroom::Result<()> {
    let _alone = alone();
    let memory = DeviceMemory::host().open()?;
    let in_use = || memory.in_use().expect("it is counted");
    let batch = Tensor::ones((64, WIDTH), DType::F32, &Device::Cpu)?;
    let loss = |layers: &[Linear], x: Tensor| -> Result<Tensor> {
        let ys = layers
            .iter()
            .try_fold(x, |x, layer| layer.forward(&x)?.tanh())?;
        ys.sqr()?.mean_all()
    };
    // Thread pools, and the workspaces of products.
    loss(&layers(&VarMap::new())?, batch.clone())?.backward()?;
    let before = in_use();
    let varmap = VarMap::new();
    let layers = layers(&varmap)?;
    let optimizer = AdamW::builder(&varmap).build()?;
    let estimate = Estimate::new(&optimizer);
    assert_eq!((estimate.trained, estimate.frozen), (3 * 512 * 513, 0));
    let mut trainer = AdaptiveTrainer::builder(optimizer)
        .memory(&memory)
        .build()?;
    assert_eq!(trainer.estimate().peak(1), None);
    for _ in 0..8 {
        trainer.step(&batch, |x, _| loss(&layers, x))?;
    }
    let held = in_use() - before;
    let off = held as f64 / estimate.held_bytes() as f64 - 1.;
    assert!(off.abs() < 0.02, "{held} bytes are held:\n{estimate}");

    // With its activations.
    let after = trainer.estimate();
    assert_eq!(after.held, estimate.held);
    let scope = memory.peak_scope();
    let report = trainer.step(&batch, |x, _| loss(&layers, x))?;
    let peak = scope.peak().expect("it is counted") - before;
    let said = after.peak(report.micro_batch()).expect("it was measured");
    let off = said as f64 / peak as f64 - 1.;
    assert!(off.abs() < 0.1, "the peak is {peak}:\n{after}");

    // As a file.
    let json = serde_json::to_string(&after).expect("JSON");
    assert_eq!(
        serde_json::from_str::<Estimate>(&json).expect("an estimate"),
        after
    );
    let text = after.to_string();
    for part in [
        "787968 elements trained",
        "accumulated gradients",
        "optimizer state",
        "what would reduce it",
    ] {
        assert!(text.contains(part), "{text}");
    }
    Ok(())
}

#[test]
fn frozen_parameters_cost_their_own_size_alone() -> candle_headroom::Result<()> {
    let _alone = alone();
    let varmap = VarMap::new();
    layers(&varmap)?;
    let vars = |is_first: bool| {
        let data = varmap.data().lock().expect("one thread");
        let chosen = data
            .iter()
            .filter(|(name, _)| name.starts_with('0') == is_first);
        chosen
            .map(|(name, var)| (name.clone(), var.clone()))
            .collect::<Vec<_>>()
    };
    let builder = AdamW::builder(vars(true));
    let optimizer = builder.group(Group::from(vars(false)).frozen()).build()?;
    let estimate = Estimate::new(&optimizer);
    let one = (WIDTH * (WIDTH + 1)) as u64;
    assert_eq!((estimate.trained, estimate.frozen), (one, 2 * one));
    assert_eq!(estimate.held_bytes(), 16 * one + 4 * 2 * one);
    Ok(())
}
