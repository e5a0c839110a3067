//! Losses. The last target of each sample does not count where `ignoring` says so.

use candle_core::{D, Result, Tensor};
use candle_headroom_nn::loss::{self, LinearCrossEntropy};

use super::case::{Argument, Argument::*, Case, Kind};

const CLASSES: u32 = 5;

fn with_targets(length: usize) -> Vec<Argument> {
    vec![Sample(vec![length, 5]), Numbers(vec![length], CLASSES)]
}

fn with_weight(length: usize) -> Vec<Argument> {
    let mut arguments = vec![Sample(vec![length, 4]), Numbers(vec![length], CLASSES)];
    arguments.extend([Shared(vec![5, 4]), Shared(vec![5])]);
    arguments
}

fn pair(length: usize) -> Vec<Argument> {
    vec![Sample(vec![length, 5]), Sample(vec![length, 5])]
}

/// Targets that do not count: those of class 2, but all count for `false`.
fn targets(numbers: &Tensor, ignores: bool) -> Result<Tensor> {
    let none = Tensor::full(u32::MAX, numbers.shape(), numbers.device())?;
    match ignores {
        true => numbers.eq(2u32)?.where_cond(&none, numbers),
        false => Ok(numbers.clone()),
    }
}

fn all(x: &[Tensor]) -> Result<f64> {
    Ok(x[0].elem_count() as f64)
}

fn counted(x: &[Tensor]) -> Result<f64> {
    let counted = x[1].ne(2u32)?.to_dtype(candle_core::DType::F64)?;
    counted.sum_all()?.to_scalar()
}

fn flat(x: &[Tensor], ignores: bool) -> Result<(Tensor, Tensor)> {
    let targets = targets(&x[1], ignores)?.flatten_all()?;
    Ok((x[0].flatten_to(D::Minus2)?, targets))
}

fn linear(x: &[Tensor], options: LinearCrossEntropy) -> Result<Tensor> {
    let options = options.bias(&x[3]);
    loss::linear_cross_entropy(&x[0], &x[2], &x[1], &options)
}

pub fn cases() -> Vec<Case> {
    let options = LinearCrossEntropy::default;
    vec![
        Case::new(
            "loss::cross_entropy",
            "",
            Kind::Mean(all),
            with_targets,
            |x| {
                let (logits, targets) = flat(x, false)?;
                loss::cross_entropy(&logits, &targets)
            },
        ),
        Case::new(
            "loss::cross_entropy",
            "ignored rows",
            Kind::Mean(counted),
            with_targets,
            |x| {
                let (logits, targets) = flat(x, true)?;
                loss::cross_entropy(&logits, &targets)
            },
        ),
        Case::new("loss::nll", "", Kind::Mean(all), with_targets, |x| {
            let (logits, targets) = flat(x, false)?;
            loss::nll(&logits, &targets)
        }),
        Case::new(
            "loss::nll",
            "ignored rows",
            Kind::Mean(counted),
            with_targets,
            |x| {
                let (logits, targets) = flat(x, true)?;
                loss::nll(&logits, &targets)
            },
        ),
        Case::new("loss::mse", "", Kind::Mean(all), pair, |x| {
            loss::mse(&x[0], &x[1])
        }),
        Case::new("loss::huber", "", Kind::Mean(all), pair, |x| {
            loss::huber(&x[0], &x[1], 0.7)
        }),
        Case::new(
            "loss::binary_cross_entropy_with_logit",
            "",
            Kind::Mean(all),
            pair,
            |x| loss::binary_cross_entropy_with_logit(&x[0], &x[1]),
        ),
        Case::new(
            "loss::linear_cross_entropy, loss::LinearCrossEntropy",
            "",
            Kind::Mean(all),
            with_weight,
            move |x| linear(x, options()),
        ),
        Case::new(
            "loss::linear_cross_entropy",
            "ignored tokens",
            Kind::Mean(counted),
            with_weight,
            move |x| linear(x, options().ignore_index(2).label_smoothing(0.1)),
        ),
        Case::new(
            "loss::linear_cross_entropy",
            "a z-loss and soft capping",
            Kind::Mean(all),
            with_weight,
            move |x| linear(x, options().z_loss(1e-2).softcap(2.)),
        ),
        Case::new(
            "loss::linear_cross_entropy_sum",
            "",
            Kind::Mean(|_| Ok(1.)),
            with_weight,
            move |x| {
                let options = options().ignore_index(2).bias(&x[3]);
                Ok(loss::linear_cross_entropy_sum(&x[0], &x[2], &x[1], &options)?.value)
            },
        )
        .without_sums("that of the same pass as the mean"),
    ]
}
