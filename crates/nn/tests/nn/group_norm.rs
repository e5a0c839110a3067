use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom_nn::{self as nn, GroupNorm, Module, VarBuilder, VarMap};

use crate::check::{agrees, agrees_with_differences, difference, numbers, same_bits};

fn inputs(shape: &[usize]) -> [Tensor; 3] {
    [
        numbers(shape, 1),
        numbers(&[shape[1]], 2),
        numbers(&[shape[1]], 3),
    ]
}

pub fn ours(x: &[Tensor], groups: usize) -> Result<Tensor> {
    let channels = x[1].elem_count();
    GroupNorm::new(x[1].clone(), x[2].clone(), channels, groups, 1e-3)?.forward(&x[0])
}

pub fn candles(x: &[Tensor], groups: usize) -> Result<Tensor> {
    let channels = x[1].elem_count();
    candle_nn::GroupNorm::new(x[1].clone(), x[2].clone(), channels, groups, 1e-3)?.forward(&x[0])
}

#[test]
fn agrees_with_candles_composition() -> Result<()> {
    for (shape, groups) in [
        (&[2, 6, 5][..], 3),
        (&[1, 4, 3, 7], 1),
        (&[3, 4, 11, 1], 4),
        (&[2, 8, 1], 2),
        (&[1, 2, 2, 3, 5], 2),
        (&[2, 8, 33, 40], 4),
    ] {
        agrees(
            &|x| ours(x, groups),
            &|x| candles(x, groups),
            &inputs(shape),
        )?;
    }
    agrees_with_differences(&|x| ours(x, 2), &inputs(&[2, 4, 3]))
}

#[test]
fn only_the_inputs_that_are_trained_receive_gradients() -> Result<()> {
    let [xs, weight, bias] = inputs(&[2, 4, 9]);
    let trained = Var::from_tensor(&bias)?;
    let inputs = [xs.clone(), weight.clone(), trained.as_tensor().clone()];
    let store = ours(&inputs, 2)?.sqr()?.sum_all()?.backward()?;
    assert!(store.get(&xs).is_none() && store.get(&weight).is_none());
    let plain = candles(&inputs, 2)?.sqr()?.sum_all()?.backward()?;
    let gradients = [&store, &plain].map(|store| store.get(&trained).expect("a gradient"));
    assert!(difference(gradients[0], gradients[1]) < 1e-12);
    Ok(())
}

#[test]
fn constructor_creates_the_variables_that_candles_does() -> Result<()> {
    let (ours, candles) = (VarMap::new(), VarMap::new());
    let builder = |map: &VarMap| VarBuilder::from_varmap(map, DType::F32, &Device::Cpu);
    let norm = nn::group_norm(2, 4, 1e-5, builder(&ours).pp("norm"))?;
    let other = candle_nn::group_norm(2, 4, 1e-5, builder(&candles).pp("norm"))?;
    let names = |map: &VarMap| {
        let data = map.data().lock().expect("variables");
        let mut names: Vec<_> = data.keys().cloned().collect();
        names.sort();
        names
    };
    assert_eq!(names(&ours), names(&candles));
    let xs = numbers(&[2, 4, 6], 1).to_dtype(DType::F32)?;
    // Sums in another order.
    let off = difference(
        &norm.forward(&xs)?.to_dtype(DType::F64)?,
        &other.forward(&xs)?.to_dtype(DType::F64)?,
    );
    assert!(off < 1e-6, "{off:e} off");
    same_bits(&norm.clone().forward(&xs)?, &norm.forward(&xs)?)
}

#[test]
fn odd_inputs_are_errors_or_empty() -> Result<()> {
    let [_, weight, bias] = inputs(&[2, 4, 5]);
    for groups in [0, 3] {
        assert!(GroupNorm::new(weight.clone(), bias.clone(), 4, groups, 1e-5).is_err());
    }
    let norm = GroupNorm::new(weight.clone(), bias.clone(), 4, 2, 1e-5)?;
    for shape in [&[][..], &[4], &[2, 4], &[2, 5, 3]] {
        let error = norm.forward(&numbers(shape, 1)).expect_err("a wrong shape");
        assert!(error.to_string().contains(&format!("{shape:?}")), "{error}");
    }
    let single = numbers(&[2, 4, 3], 1).to_dtype(DType::F32)?;
    assert!(norm.forward(&single).is_err());
    let short = GroupNorm::new(numbers(&[3], 1), bias.clone(), 4, 2, 1e-5)?;
    assert!(short.forward(&numbers(&[2, 4, 3], 1)).is_err());
    for shape in [[0, 4, 3], [2, 4, 0]] {
        let xs = Var::zeros(&shape, DType::F64, &Device::Cpu)?;
        let ys = norm.forward(&xs)?;
        assert_eq!(ys.dims(), shape);
        assert!(ys.sum_all()?.backward()?.get(&xs).is_some());
    }
    Ok(())
}
