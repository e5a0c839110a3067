//! `nn::loss::linear_cross_entropy_sum` in a trainer that cuts batches.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::Fixed;
use candle_headroom::nn::loss::{LinearCrossEntropy, linear_cross_entropy_sum};
use candle_headroom::{AdaptiveTrainer, Result, Sgd};

use crate::check::{difference, numbers};

/// Samples whose tokens count in different numbers, and one without any.
fn batch() -> Result<(Tensor, Tensor)> {
    let ignored = -100i64;
    let targets = [
        [0, 1, 2, 3],
        [4, ignored, ignored, ignored],
        [ignored; 4],
        [1, 1, ignored, 2],
        [3, ignored, 0, ignored],
    ];
    Ok((numbers(&[5, 4, 3], 1), Tensor::new(&targets, &Device::Cpu)?))
}

/// The weight after a step in micro-batches of some samples.
fn trained(size: usize, options: &LinearCrossEntropy) -> Result<(Tensor, f64)> {
    let weight = Var::from_tensor(&numbers(&[5, 3], 2))?;
    let optimizer = Sgd::builder(vec![weight.clone()])
        .learning_rate(0.5)
        .build()?;
    let mut trainer = AdaptiveTrainer::builder(optimizer)
        .policy(Fixed::new(size)?)
        .build()?;
    let report = trainer.step(&batch()?, |(hidden, targets), _| {
        linear_cross_entropy_sum(&hidden, &weight, &targets, options)
    })?;
    assert_eq!(report.sizes.len(), 5usize.div_ceil(size));
    Ok((weight.as_detached_tensor(), report.loss.read()?))
}

#[test]
fn unequal_micro_batches_give_the_step_of_the_whole_batch() -> Result<()> {
    let options = LinearCrossEntropy::default()
        .ignore_index(-100)
        .label_smoothing(0.1)
        .z_loss(0.01);
    let (whole, loss) = trained(5, &options)?;
    let before = numbers(&[5, 3], 2).to_dtype(DType::F64)?;
    assert!(difference(&whole, &before) > 1e-3, "nothing was learned");
    for size in [1, 2, 3] {
        let (weight, of_parts) = trained(size, &options)?;
        // Rounding of f64.
        assert!(difference(&weight, &whole) < 1e-13, "{size}");
        assert!(
            (of_parts - loss).abs() < 1e-13,
            "{size}: {of_parts} for {loss}"
        );
    }
    Ok(())
}
