//! An exhaustion names the layers that held the memory.

use candle_core::{DType, Device};
use candle_headroom::batch::Fixed;
use candle_headroom::nn::{VarBuilder, VarMap};
use candle_headroom::{AdaptiveTrainer, DeviceMemory, Error, Foreign};
use candle_nn::{Optimizer, SGD};

use super::spanned::{Sizes, Spanned};
use super::watched;
use crate::support::alone;

const SIZES: Sizes = Sizes {
    vocabulary: 64,
    width: 128,
    heads: 2,
    blocks: 4,
};

/// The error of a step that goes over its limit in the forward pass, or as candle reports it in the backward pass.
fn exhausted(fails_after: bool) -> candle_headroom::ResourceExhausted {
    let memory = DeviceMemory::host().open().unwrap();
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let model = Spanned::new(SIZES, vb).unwrap();
    let vars = varmap.all_vars();
    let optimizer = Foreign::new(SGD::new(vars.clone(), 0.1).unwrap(), vars);
    let builder = AdaptiveTrainer::builder(optimizer).memory(&memory);
    let mut trainer = builder.policy(Fixed::new(16).unwrap()).build().unwrap();
    let batch = SIZES.batch(16, 64).unwrap();
    let error = trainer.step(&batch, |(x, y), _| {
        let loss = model.loss(&x, &y)?;
        if fails_after {
            candle_core::bail!("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")");
        }
        Ok(loss)
    });
    match error {
        Err(Error::ResourceExhausted(exhausted)) => *exhausted,
        other => panic!("{other:?}"),
    }
}

#[test]
fn it_names_them_in_its_long_form() {
    let _alone = alone();
    let exhausted = watched(|_| exhausted(true));
    let text = format!("{exhausted:#}");
    println!("{text}");
    let first = exhausted.layers.first().expect("layers");
    assert_eq!(first.what, "model.block.*.mlp", "{text}");
    assert!(text.contains("\n  held by: model.block.*.mlp "), "{text}");
    // Four blocks with 9 tensors of this size in each perceptron, and more.
    assert!(first.bytes > 4 * 9 * 16 * 64 * 128 * 4);
    assert!(
        !format!("{exhausted}").contains("held by"),
        "not in the short form"
    );
}

#[test]
fn without_layers_there_is_no_such_line() {
    let _alone = alone();
    let exhausted = exhausted(true);
    assert!(exhausted.layers.is_empty());
    assert!(!format!("{exhausted:#}").contains("held by:"));
}
