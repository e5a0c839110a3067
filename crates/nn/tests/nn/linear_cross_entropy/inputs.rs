use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom_nn::loss::{
    LinearCrossEntropy, cross_entropy, linear_cross_entropy, linear_cross_entropy_sum,
};
use candle_headroom_nn::{Embedding, Module};

use super::{Plain, targets};
use crate::check::{FLOATS, difference, numbers, rounding, same_bits};

fn var(shape: &[usize], seed: u64) -> Result<Var> {
    Var::from_tensor(&numbers(shape, seed))
}

fn plain() -> LinearCrossEntropy {
    LinearCrossEntropy::default()
}

/// The gradients of hidden states and weight.
fn gradients(loss: &Tensor, hidden: &Var, weight: &Var) -> Result<[Tensor; 2]> {
    let mut store = loss.backward()?;
    let mut gradient = |var: &Var| store.remove(var).expect("a gradient");
    Ok([gradient(hidden), gradient(weight)])
}

#[test]
fn targets_of_all_types_and_layouts() -> Result<()> {
    let (hidden, weight) = (numbers(&[6, 4], 1), numbers(&[5, 4], 2));
    let targets = targets(&[6], 5)?;
    let options = plain().ignore_index(2);
    let loss = linear_cross_entropy(&hidden, &weight, &targets, &options)?;
    for dtype in [DType::U8, DType::U32] {
        let targets = targets.to_dtype(dtype)?;
        let other = linear_cross_entropy(&hidden, &weight, &targets, &options)?;
        same_bits(&loss, &other)?;
        // This type cannot hold it.
        let none = linear_cross_entropy(&hidden, &weight, &targets, &plain().ignore_index(-100))?;
        let all = linear_cross_entropy(&hidden, &weight, &targets, &plain())?;
        same_bits(&none, &all)?;
    }
    let wide = Tensor::stack(&[&targets, &targets], 1)?;
    let strided = wide.narrow(1, 1, 1)?.squeeze(1)?;
    same_bits(
        &loss,
        &linear_cross_entropy(&hidden, &weight, &strided, &options)?,
    )
}

#[test]
fn ignored_tokens_do_not_count_in_the_mean() -> Result<()> {
    let (hidden, weight) = (var(&[4, 3], 1)?, var(&[5, 3], 2)?);
    let all = Tensor::new(&[1i64, -100, 4, i64::MAX], &Device::Cpu)?;
    let options = plain().ignore_index(-100).chunk_rows(3);
    let loss = linear_cross_entropy(&hidden, &weight, &all, &options)?;
    let logits = hidden.index_select(&Tensor::new(&[0u32, 2], &Device::Cpu)?, 0)?;
    let logits = logits.matmul(&weight.t()?)?;
    let expected = cross_entropy(&logits, &Tensor::new(&[1u32, 4], &Device::Cpu)?)?;
    assert!(difference(&loss, &expected) < 1e-12);
    let [found, _] = gradients(&loss, &hidden, &weight)?;
    let [of_counted, _] = gradients(&expected, &hidden, &weight)?;
    assert!(difference(&found, &of_counted) < 1e-12);
    for row in [1, 3] {
        assert_eq!(found.get(row)?.to_vec1::<f64>()?, [0.; 3]);
    }
    // The largest number alone.
    let targets = Tensor::new(&[1u32, u32::MAX, 4, u32::MAX], &Device::Cpu)?;
    let other = linear_cross_entropy(&hidden, &weight, &targets, &plain().chunk_rows(3))?;
    same_bits(&loss, &other)
}

/// By their target or by a weight of 0; they get and give no gradient.
#[test]
fn hidden_states_of_ignored_tokens_may_be_nan() -> Result<()> {
    let weights = Tensor::new(&[1f64, 1., 0., 1.], &Device::Cpu)?;
    let targets = Tensor::new(&[1i64, -100, 3, 4], &Device::Cpu)?;
    let options = plain().ignore_index(-100).token_weights(&weights);
    let (weight, bias) = (var(&[5, 3], 2)?, var(&[5], 3)?);
    let run = |hidden: &Tensor| -> Result<Vec<Tensor>> {
        let (hidden, options) = (Var::from_tensor(hidden)?, options.clone().bias(&bias));
        let loss = linear_cross_entropy(&hidden, &weight, &targets, &options.chunk_rows(3))?;
        let store = loss.backward()?;
        let gradients = [&hidden, &weight, &bias].map(|var| store.get(var).cloned());
        Ok([vec![loss], gradients.into_iter().flatten().collect()].concat())
    };
    let hidden = numbers(&[4, 3], 1);
    let nan = Tensor::new(
        &[[f64::NAN; 3], [f64::INFINITY, 0., f64::NAN]],
        &Device::Cpu,
    )?;
    let [first, last] = [hidden.narrow(0, 0, 1)?, hidden.narrow(0, 3, 1)?];
    let (found, expected) = (run(&Tensor::cat(&[first, nan, last], 0)?)?, run(&hidden)?);
    assert_eq!((found.len(), expected.len()), (4, 4));
    for (found, expected) in found.iter().zip(&expected) {
        same_bits(found, expected)?;
    }
    Ok(())
}

#[test]
fn nothing_that_counts_gives_zeros() -> Result<()> {
    let weight = var(&[5, 3], 2)?;
    let none = Tensor::full(-1i64, 4, &Device::Cpu)?;
    let zeros = Tensor::zeros(4, DType::F32, &Device::Cpu)?;
    for (values, targets, options) in [
        (numbers(&[4, 3], 1), &none, plain().ignore_index(-1)),
        (
            numbers(&[4, 3], 1),
            &targets(&[4], 5)?,
            plain().token_weights(&zeros),
        ),
        (numbers(&[0, 3], 1), &targets(&[0], 5)?, plain()),
    ] {
        let hidden = Var::from_tensor(&values)?;
        let loss = linear_cross_entropy(&hidden, &weight, targets, &options)?;
        assert_eq!(loss.to_scalar::<f64>()?, 0.);
        let [of_hidden, of_weight] = gradients(&loss, &hidden, &weight)?;
        assert_eq!(of_hidden.dims(), values.dims());
        assert_eq!(of_hidden.abs()?.sum_all()?.to_scalar::<f64>()?, 0.);
        assert_eq!(of_weight.abs()?.sum_all()?.to_scalar::<f64>()?, 0.);
        let sum = linear_cross_entropy_sum(&hidden, &weight, targets, &options)?;
        assert_eq!((sum.value.to_scalar::<f64>()?, sum.weight), (0., 0.));
    }
    Ok(())
}

#[test]
fn a_tied_embedding_gets_both_gradients() -> Result<()> {
    let weight = var(&[5, 3], 2)?;
    let embedding = Embedding::new(weight.as_tensor().clone(), 3);
    let tokens = Tensor::new(&[[0u32, 1, 1], [4, 2, 0]], &Device::Cpu)?;
    let hidden = embedding.forward(&tokens)?.tanh()?;
    let targets = targets(&[2, 3], 5)?;
    let loss = linear_cross_entropy(&hidden, &weight, &targets, &plain())?;
    let expected = Plain::default().mean(&[hidden, weight.as_tensor().clone()], &targets)?;
    let gradient = |loss: &Tensor| -> Result<Tensor> {
        Ok(loss.backward()?.remove(&weight).expect("a gradient"))
    };
    let off = difference(&gradient(&loss)?, &gradient(&expected)?);
    assert!(off < 1e-12, "{off:e} off");
    Ok(())
}

#[test]
fn what_is_frozen_changes_nothing_for_the_others() -> Result<()> {
    let (hidden, weight, bias) = (var(&[6, 4], 1)?, var(&[5, 4], 2)?, var(&[5], 3)?);
    let targets = targets(&[6], 5)?;
    let loss = |on: [bool; 3]| {
        let chosen = |var: &Var, on| {
            if on {
                var.as_tensor().clone()
            } else {
                var.detach()
            }
        };
        let options = plain().bias(&chosen(&bias, on[2]));
        linear_cross_entropy(
            &chosen(&hidden, on[0]),
            &chosen(&weight, on[1]),
            &targets,
            &options,
        )
    };
    let all = loss([true; 3])?;
    let expected = all.backward()?;
    for bits in 0..7 {
        let on = [bits & 1 > 0, bits & 2 > 0, bits & 4 > 0];
        let loss = loss(on)?;
        same_bits(&loss, &all)?;
        let store = loss.backward()?;
        for (var, on) in [&hidden, &weight, &bias].into_iter().zip(on) {
            match (store.get(var), expected.get(var)) {
                (Some(found), Some(expected)) if on => same_bits(found, expected)?,
                (found, _) => assert!(found.is_none() && !on),
            }
        }
    }
    Ok(())
}

/// By a number, by another tensor of the graph, and where two losses share the hidden states; f16 keeps gradients that only the loss's
/// factor lifts into its range.
#[test]
fn the_gradient_of_the_loss_scales() -> Result<()> {
    let (hidden, weight) = (var(&[6, 4], 1)?, var(&[5, 4], 2)?);
    let (targets, factor) = (targets(&[6], 5)?, Var::new(1024f64, &Device::Cpu)?);
    let loss = || linear_cross_entropy(&hidden, &weight, &targets, &plain());
    let once = gradients(&loss()?, &hidden, &weight)?;
    let by_number = gradients(&(loss()? * 1024.)?, &hidden, &weight)?;
    let by_tensor = gradients(&(loss()? * factor.as_tensor())?, &hidden, &weight)?;
    let twice = gradients(&((loss()? * 1000.)? + (loss()? * 24.)?)?, &hidden, &weight)?;
    for scaled in [by_number, by_tensor, twice] {
        for (scaled, once) in scaled.iter().zip(&once) {
            let off = difference(scaled, &(once * 1024.)?);
            assert!(off < 1e-12, "{off:e} off");
        }
    }
    // Each gradient is below 2⁻²⁵, which f16 rounds to zero.
    let tiny = |tensor: &Var| Var::from_tensor(&tensor.to_dtype(DType::F16)?);
    let (hidden, weight) = (tiny(&hidden)?, tiny(&weight)?);
    let weights = Tensor::full(2f32.powi(-28), 6, &Device::Cpu)?;
    let options = plain().token_weights(&weights);
    let loss = linear_cross_entropy_sum(&hidden, &weight, &targets, &options)?.value;
    let found = gradients(&(loss * 2f64.powi(28))?, &hidden, &weight)?;
    for (found, once) in found.iter().zip(&once) {
        let off = difference(&found.to_dtype(DType::F64)?, &(once * 6.)?);
        assert!(off < rounding(DType::F16), "{off:e} off");
    }
    Ok(())
}

#[test]
fn a_second_backward_pass_computes_the_gradients_again() -> Result<()> {
    for dtype in FLOATS {
        let typed =
            |shape: &[usize], seed| Var::from_tensor(&numbers(shape, seed).to_dtype(dtype)?);
        let (hidden, weight, bias) = (typed(&[2, 3, 4], 1)?, typed(&[5, 4], 2)?, typed(&[5], 3)?);
        let options = Plain::everything(&[2, 3])?.options(&Device::Cpu)?;
        for options in [options.clone(), options.bias(&bias)] {
            let loss = linear_cross_entropy(&hidden, &weight, &targets(&[2, 3], 5)?, &options)?;
            let first = gradients(&(&loss * 3.)?, &hidden, &weight)?;
            let second = gradients(&(&loss * 3.)?, &hidden, &weight)?;
            for (first, second) in first.iter().zip(&second) {
                same_bits(first, second)?;
            }
        }
    }
    Ok(())
}

#[test]
fn large_logits_cost_no_digits() -> Result<()> {
    let targets = targets(&[5], 40)?;
    for shift in [0., 1e3, 1e5, -1e5] {
        // The same shift for each class, which changes no probability.
        let hidden = Var::from_tensor(&numbers(&[5, 4], 1).to_dtype(DType::F32)?)?;
        let weight = Var::from_tensor(&numbers(&[40, 4], 2).to_dtype(DType::F32)?)?;
        let bias = Tensor::full(shift as f32, 40, &Device::Cpu)?;
        let loss = linear_cross_entropy(&hidden, &weight, &targets, &plain().bias(&bias))?;
        assert!(loss.to_scalar::<f32>()?.is_finite());
        let logits = hidden.matmul(&weight.t()?)?.broadcast_add(&bias)?;
        let expected = cross_entropy(&logits, &targets)?;
        let found = gradients(&loss, &hidden, &weight)?;
        let expected = gradients(&expected, &hidden, &weight)?;
        for (found, expected) in found.iter().zip(&expected) {
            let [found, expected] = [found, expected].map(|gradient| gradient.to_dtype(DType::F64));
            let off = difference(&found?, &expected?);
            assert!(off <= rounding(DType::F32), "{shift}: {off:e} off");
        }
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_an_error_that_names_it() -> Result<()> {
    let (hidden, weight) = (numbers(&[2, 3, 4], 1), numbers(&[5, 4], 2));
    let targets = targets(&[2, 3], 5)?;
    let refused = |hidden: &Tensor, weight: &Tensor, targets: &Tensor, options, expected: &str| {
        let text = match linear_cross_entropy(hidden, weight, targets, &options) {
            Ok(loss) => panic!("{expected}: {loss}"),
            Err(error) => error.to_string(),
        };
        assert!(text.contains(expected), "{text}");
    };
    let options = |options, expected: &str| refused(&hidden, &weight, &targets, options, expected);
    options(plain().label_smoothing(1.), "[0, 1), got 1");
    options(plain().label_smoothing(-0.1), "got -0.1");
    options(plain().label_smoothing(f64::NAN), "got NaN");
    options(
        plain().z_loss(-1.),
        "z_loss must be finite and at least 0, got -1",
    );
    options(
        plain().softcap(0.),
        "softcap must be positive and finite, got 0",
    );
    options(plain().chunk_rows(0), "chunk_rows must be at least 1");
    let weights = |weights: &[f32]| Tensor::new(weights, &Device::Cpu)?.reshape((2, 3));
    options(
        plain().token_weights(&weights(&[1., 1., 1., 1., -2., 1.])?),
        "token 4 is -2",
    );
    options(
        plain().token_weights(&weights(&[1., f32::NAN, 1., 1., 1., 1.])?),
        "token 1 is NaN",
    );
    options(
        plain().token_weights(&weights(&[1.; 6])?.flatten_all()?),
        "[6] for targets",
    );
    options(
        plain().token_weights(&targets),
        "floating-point numbers, got I64",
    );
    options(
        plain().bias(&numbers(&[4], 1)),
        "needs a bias (classes), got [4]",
    );
    options(plain().bias(&numbers(&[5], 1).to_dtype(DType::F32)?), "F32");

    let of_targets = |targets: &Tensor, expected: &str| {
        refused(&hidden, &weight, targets, plain(), expected);
    };
    of_targets(&targets.flatten_all()?, "got [6]");
    of_targets(&targets.to_dtype(DType::F32)?, "F32");
    let last = |last: i64| Tensor::new(&[[0, 1, 2], [3, 4, last]], &Device::Cpu);
    of_targets(&last(5)?, "row 5 is 5, there are 5 classes");
    of_targets(&last(-1)?, "row 5 is -1, there are 5 classes");

    let of_inputs = |hidden: &Tensor, weight: &Tensor, expected: &str| {
        refused(hidden, weight, &targets, plain(), expected);
    };
    of_inputs(
        &hidden,
        &weight.t()?,
        "needs a weight (classes, width), got [4, 5]",
    );
    of_inputs(&hidden, &weight.flatten_all()?, "got [20]");
    of_inputs(&hidden, &weight.narrow(0, 0, 0)?, "got [0, 4]");
    of_inputs(&hidden, &weight.to_dtype(DType::F32)?, "F32");
    let whole = |tensor: &Tensor| tensor.to_dtype(DType::U32);
    of_inputs(&whole(&hidden)?, &whole(&weight)?, "U32");
    Ok(())
}
