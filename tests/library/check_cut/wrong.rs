use candle_core::{D, DType, Device, Tensor};
use candle_headroom::batch::MicroBatch;
use candle_headroom::error::CutCause::{self, Neighbours, Sum, Weights};
use candle_headroom::{Error, Loss};
use candle_nn::ops::{log_softmax, softmax};

use super::{Case, Result, TYPES, case, cause, column, each, positive, read, trainer};
use crate::support::{Mlp, snapshot};

/// Samples of a batch, which the closures of a program may take for granted.
const SAMPLES: usize = 12;

/// Samples of different sizes, so that the statistics of a few differ by more than bf16 rounds.
fn uneven(samples: usize, dtype: DType) -> (Tensor, Tensor) {
    let x = [0.8, 2., 0.4, 1.9, 0.2, 2.6, 1., 0.5, 1.8, 0.4, 2.2, 0.9];
    let y = [
        1.5, -0.4, 2.2, 0.3, -1.8, 0.8, 2.6, -0.2, 1.2, -2.4, 0.6, 1.9,
    ];
    let scaled = |values: Tensor, scales: [f64; SAMPLES]| {
        let scales = Tensor::from_iter(scales.into_iter().take(samples), &Device::Cpu)?;
        values.broadcast_mul(&scales.unsqueeze(1)?)?.to_dtype(dtype)
    };
    let (xs, ys) = Mlp::data(samples, DType::F64);
    (scaled(xs, x).unwrap(), scaled(ys, y).unwrap())
}

/// Texts of one to three tokens: 1 for tokens, and 0 for padding.
fn kept(x: &Tensor, micro: &MicroBatch) -> Result<Tensor> {
    let length = |sample: usize| [1, 3, 1, 1, 3, 3, 3][sample % 7];
    let tokens = |sample| (0..3).map(move |token| f32::from(token < length(sample)));
    let all: Vec<f32> = micro.samples.clone().flat_map(tokens).collect();
    let all = Tensor::from_iter(all, &Device::Cpu)?.to_dtype(x.dtype())?;
    all.reshape((micro.samples.len(), 3))
}

/// Every token that is kept counts the same; how many there are differs from sample to sample.
fn kept_mean(model: &Mlp, x: &Tensor, y: &Tensor, micro: &MicroBatch) -> Result<Tensor> {
    let keep = kept(x, micro)?;
    let each = (model.forward(x)? - y)?.sqr()?;
    (each * &keep)?.sum_all()? / read(&keep.sum_all()?)?
}

/// PPO: advantages are normalized over the samples that the closure sees. The mean of the loss is about 0 for every cut.
fn normalized_advantages(model: &Mlp, x: &Tensor, y: &Tensor, _: &MicroBatch) -> Result<Tensor> {
    let advantages = column(y, 0)?;
    let centred = advantages.broadcast_sub(&advantages.mean_all()?)?;
    let deviation = (centred.sqr()?.mean_all()? + 1e-4)?.sqrt()?;
    let normalized = centred.broadcast_div(&deviation)?;
    let chances = log_softmax(&model.forward(x)?, D::Minus1)?;
    (column(&chances, 1)? * normalized)?.mean_all()?.neg()
}

/// InfoNCE: the other samples are the negatives.
fn contrastive(model: &Mlp, x: &Tensor, y: &Tensor, _: &MicroBatch) -> Result<Tensor> {
    let scores = model.forward(x)?.matmul(&y.t()?)?;
    let chances = log_softmax(&(scores * 3.)?, D::Minus1)?;
    let own = Tensor::eye(x.dim(0)?, x.dtype(), &Device::Cpu)?;
    (chances * own)?.sum_all()?.neg()? / x.dim(0)? as f64
}

/// Classes weigh by how rare they are among the samples.
fn class_weights(model: &Mlp, x: &Tensor, y: &Tensor, _: &MicroBatch) -> Result<Tensor> {
    let is_first = positive(&column(y, 0)?)?;
    let count = read(&is_first.sum_all()?)?;
    let others = x.dim(0)? as f64 - count;
    let weights = ((&is_first / (count + 1.))? + ((1. - &is_first)? / (others + 1.))?)?;
    (each(model, x, y)? * weights)?.sum_all()
}

fn sum(model: &Mlp, x: &Tensor, y: &Tensor, _: &MicroBatch) -> Result<Tensor> {
    each(model, x, y)?.sum_all()
}

fn captured_constant(model: &Mlp, x: &Tensor, y: &Tensor, _: &MicroBatch) -> Result<Tensor> {
    each(model, x, y)?.sum_all()? / SAMPLES as f64
}

/// A weight for each sample of the batch, of which each micro-batch takes the first ones.
fn wrong_start(model: &Mlp, x: &Tensor, y: &Tensor, micro: &MicroBatch) -> Result<Tensor> {
    let all = Tensor::arange(1u32, SAMPLES as u32 + 1, &Device::Cpu)?.to_dtype(x.dtype())?;
    // `micro.samples.start` is missing.
    let weights = all.narrow(0, 0, micro.samples.len())?;
    (each(model, x, y)? * weights)?.mean_all()
}

/// A softmax over the samples instead of over the classes.
fn softmax_of_samples(model: &Mlp, x: &Tensor, y: &Tensor, _: &MicroBatch) -> Result<Tensor> {
    (softmax(&model.forward(x)?, 0)? * y)?.sum(1)?.mean_all()
}

fn divided_by_maximum(model: &Mlp, x: &Tensor, y: &Tensor, _: &MicroBatch) -> Result<Tensor> {
    let largest = x.sum(1)?.abs()?.max(0)?;
    each(model, &x.broadcast_div(&largest)?, y)?.mean_all()
}

/// All pairs of samples are to be in the right order.
fn ranking(model: &Mlp, x: &Tensor, y: &Tensor, _: &MicroBatch) -> Result<Tensor> {
    let pairs = |values: &Tensor| values.unsqueeze(1)?.broadcast_sub(&values.unsqueeze(0)?);
    let scores = pairs(&column(&model.forward(x)?, 0)?)?;
    let should_be_above = positive(&pairs(&column(y, 0)?)?)?;
    ((1. - scores)?.relu()? * should_be_above)?.mean_all()
}

/// Ten programs, each with the causes that may be named.
fn ten() -> [(Case, &'static [CutCause]); 10] {
    let cases: [(Case, &'static [CutCause]); 10] = [
        (case("a mean over what is kept", kept_mean), &[Weights]),
        (
            case("normalized advantages", normalized_advantages),
            &[Neighbours],
        ),
        (case("contrastive", contrastive), &[Neighbours]),
        (
            case("class weights of the batch", class_weights),
            &[Neighbours, Weights, Sum],
        ),
        (case("a sum", sum), &[Sum]),
        (case("a captured constant", captured_constant), &[Sum]),
        (case("the wrong start", wrong_start), &[Neighbours]),
        (
            case("a softmax over samples", softmax_of_samples),
            &[Neighbours],
        ),
        (
            case("divided by the maximum", divided_by_maximum),
            &[Neighbours, Weights],
        ),
        (case("pairwise ranking", ranking), &[Neighbours]),
    ];
    cases.map(|(case, causes)| {
        let batch = uneven;
        (Case { batch, ..case }, causes)
    })
}

#[test]
fn the_first_cut_finds_ten_wrong_closures() {
    let cases = ten();
    let mut missed = Vec::new();
    for (case, causes) in &cases {
        let done = case.step(DType::F32, SAMPLES, 7);
        let named = done.as_ref().err().and_then(cause);
        if !named.is_some_and(|named| causes.contains(&named)) {
            missed.push(format!("{}: {done:?}", case.name));
        }
    }
    println!("figure: cut/wrong_closures = {} closures", cases.len());
    println!(
        "figure: cut/wrong_closures_found = {} closures",
        cases.len() - missed.len()
    );
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// In each type, with few samples and with many, by the trainer and when it is asked.
#[test]
fn they_are_found_in_each_type_and_with_few_samples() {
    let mut missed = Vec::new();
    for dtype in TYPES {
        for (case, _) in ten() {
            let mut note = |done: Result<String, Error>, how: &str| {
                if done.as_ref().err().and_then(cause).is_none() {
                    missed.push(format!("{} in {dtype:?}, {how}: {done:?}", case.name));
                }
            };
            let check = case.check(dtype, SAMPLES);
            note(check.map(|check| check.to_string()), "asked");
            for size in [3, 4, 7, 8] {
                let step = case.step(dtype, SAMPLES, size);
                note(step.map(|report| format!("{report:#}")), &size.to_string());
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// Two samples that were never computed together, in a batch of two or three.
#[test]
fn they_are_found_in_batches_of_two_and_three() {
    // Of these the first two samples have something to normalize, to rank and to keep.
    for (case, _) in ten() {
        for samples in [2, 3] {
            let error = case.step(DType::F32, samples, 1);
            let error = error.expect_err(case.name);
            assert!(cause(&error).is_some(), "{}: {error}", case.name);
        }
    }
}

/// Equal halves would not show a weight that is the same for every micro-batch.
#[test]
fn a_constant_weight_is_found() {
    let mean = |model: &Mlp, x: &Tensor, y: &Tensor, _: &MicroBatch| {
        Ok(Loss::weighted_mean(each(model, x, y)?.mean_all()?, 1.))
    };
    let error = case("weight 1", mean).step(DType::F32, SAMPLES, 8);
    assert_eq!(cause(&error.unwrap_err()), Some(Weights));
    let sum = |model: &Mlp, x: &Tensor, y: &Tensor, _: &MicroBatch| {
        Ok(Loss::sum(each(model, x, y)?.sum_all()?, 1.))
    };
    let error = case("sum of weight 1", sum).step(DType::F32, SAMPLES, 8);
    assert_eq!(cause(&error.unwrap_err()), Some(Sum));
}

/// The error comes before the update, names numbers and remedy, and comes again; `unchecked_cuts` trains all the same.
#[test]
fn nothing_changes_and_the_remedy_is_named() {
    let model = Mlp::new(DType::F32);
    let before = snapshot(&model.vars);
    let (x, y) = Mlp::data(SAMPLES, DType::F32);
    let batch = (x, y);
    let mut trainer = trainer(&model, 7);
    for _ in 0..2 {
        let error = trainer.step(&batch, |(x, y), micro| kept_mean(&model, &x, &y, micro));
        let error = error.unwrap_err().to_string();
        for part in [
            "samples 0..7",
            "cut at 3",
            "Loss::weighted_mean",
            "unchecked_cuts",
        ] {
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(
            (trainer.updates(), trainer.samples(), trainer.pending()),
            (0, 0, 0)
        );
        assert_eq!(snapshot(&model.vars), before);
    }
    // The remedy.
    let report = trainer.step(&batch, |(x, y), micro| {
        let keep = read(&kept(&x, micro)?.sum_all()?)?;
        Ok(Loss::weighted_mean(kept_mean(&model, &x, &y, micro)?, keep))
    });
    assert_eq!(report.unwrap().step, 1);

    let model = Mlp::new(DType::F32);
    let builder =
        crate::support::by_sgd(&model).policy(candle_headroom::batch::Fixed::new(7).unwrap());
    let mut trainer = builder.unchecked_cuts().build().unwrap();
    let report = trainer.step(&batch, |(x, y), micro| kept_mean(&model, &x, &y, micro));
    let report = report.unwrap();
    assert_eq!((report.step, report.cut_check()), (1, None));
}
