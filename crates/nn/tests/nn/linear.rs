use candle_core::{D, DType, Device, Module, Result, Tensor, Var};
use candle_headroom_nn::{self as nn, Linear};
use candle_nn::{VarBuilder, VarMap};

use crate::check::{agrees, agrees_with_differences, difference, numbers, same_bits};

fn ours(x: &[Tensor]) -> Result<Tensor> {
    Linear::new(x[1].clone(), x.get(2).cloned()).forward(&x[0])
}

fn candles(x: &[Tensor]) -> Result<Tensor> {
    // For transposed inputs of three dimensions candle's product is wrong.
    let input = match x[0].rank() {
        2 => x[0].clone(),
        _ => x[0].contiguous()?,
    };
    candle_nn::Linear::new(x[1].clone(), x.get(2).cloned()).forward(&input)
}

const SHAPES: [&[usize]; 4] = [&[1, 6], &[7, 6], &[2, 3, 6], &[2, 3, 5, 6]];

#[test]
fn agrees_with_plain_operations() -> Result<()> {
    for shape in SHAPES {
        let (x, weight, bias) = (numbers(shape, 1), numbers(&[4, 6], 2), numbers(&[4], 3));
        agrees(&ours, &candles, &[x.clone(), weight.clone(), bias.clone()])?;
        agrees(&ours, &candles, &[x.clone(), weight.clone()])?;
        agrees_with_differences(&ours, &[x, weight, bias])?;
    }
    Ok(())
}

#[test]
fn forward_equals_candles_bit_by_bit() -> Result<()> {
    for dtype in [DType::F32, DType::F64] {
        for shape in SHAPES {
            let weight = numbers(&[33, shape[shape.len() - 1]], 2).to_dtype(dtype)?;
            let bias = numbers(&[33], 3).to_dtype(dtype)?;
            let x = numbers(shape, 1).to_dtype(dtype)?;
            let strided = x.transpose(D::Minus1, D::Minus2)?.contiguous()?;
            let strided = strided.transpose(D::Minus1, D::Minus2)?;
            let part = Tensor::cat(&[&x, &x], 0)?.narrow(0, 1, shape[0])?;
            for x in [x, strided, part] {
                let inputs = [x, weight.clone(), bias.clone()];
                same_bits(&ours(&inputs)?, &candles(&inputs)?)?;
                same_bits(&ours(&inputs[..2])?, &candles(&inputs[..2])?)?;
            }
        }
    }
    Ok(())
}

#[test]
fn frozen_weights_get_no_gradient() -> Result<()> {
    let (weight, bias) = (numbers(&[4, 6], 1), numbers(&[4], 2));
    let x = Var::from_tensor(&numbers(&[3, 6], 3))?;
    let layer = Linear::new(weight.clone(), Some(bias.clone()));
    let store = layer.forward(&x)?.sum_all()?.backward()?;
    assert!(store.get(&x).is_some());
    assert!(store.get(&weight).is_none() && store.get(&bias).is_none());
    // The gradient of the weight has the weight's layout.
    let weight = Var::from_tensor(&weight)?;
    let layer = Linear::new(weight.as_tensor().clone(), None);
    let store = layer.forward(&x.detach())?.sqr()?.sum_all()?.backward()?;
    assert!(store.get(&weight).expect("a gradient").is_contiguous());
    Ok(())
}

#[test]
fn candles_layers_become_these() -> Result<()> {
    let of = |shape: &[usize], seed| numbers(shape, seed).to_dtype(DType::F32);
    let (weight, bias) = (of(&[4, 3], 1)?, of(&[4], 2)?);
    let (row, x) = (of(&[3], 3)?, of(&[2, 3], 4)?);
    let (eps, ids) = (1e-5, Tensor::new(&[3u32, 0], &Device::Cpu)?);
    let linear = candle_nn::Linear::new(weight.clone(), Some(bias));
    let table = candle_nn::Embedding::new(weight, 3);
    let norm = candle_nn::LayerNorm::new(row.clone(), row.clone(), eps);
    let rms = candle_nn::RmsNorm::new(row, eps);
    let expected = [
        linear.forward(&x)?,
        table.forward(&ids)?,
        norm.forward(&x)?,
        rms.forward(&x)?,
    ];
    let found = [
        Linear::from(linear).forward(&x)?,
        nn::Embedding::from(table).forward(&ids)?,
        nn::LayerNorm::from(norm).forward(&x)?,
        nn::RmsNorm::from(rms).forward(&x)?,
    ];
    for (found, expected) in found.iter().zip(&expected) {
        let wide = |x: &Tensor| x.to_dtype(DType::F64);
        let off = difference(&wide(found)?, &wide(expected)?);
        assert!(off < 1e-6, "{off:e}");
    }
    Ok(())
}

#[test]
fn the_gradient_of_the_bias_does_not_depend_on_threads() -> Result<()> {
    let dys = numbers(&[1000, 40], 1).to_dtype(DType::F32)?;
    let run = || -> Result<Tensor> {
        let weight = Tensor::zeros((40, 8), DType::F32, &Device::Cpu)?;
        let bias = Var::zeros(40, DType::F32, &Device::Cpu)?;
        let layer = Linear::new(weight, Some(bias.as_tensor().clone()));
        let ys = layer.forward(&Tensor::zeros((1000, 8), DType::F32, &Device::Cpu)?)?;
        let mut store = (ys * &dys)?.sum_all()?.backward()?;
        Ok(store.remove(&bias).expect("a gradient"))
    };
    let expected = run()?;
    for threads in [1, 2, 3, 7] {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("threads");
        same_bits(&pool.install(run)?, &expected)?;
    }
    Ok(())
}

#[test]
fn the_gradient_of_the_bias_is_exact_for_many_rows() -> Result<()> {
    // (type, rows, dy, how far off): 2048 is the last whole number that f16 counts to, 256 that of bf16. 300000 times the f32 next to
    // 0.1 is off by 4e3 roundings of f32 at most in parts of 8192 rows, and by 3e-3 if added one by one.
    for (dtype, rows, dy, tolerance) in [
        (DType::F16, 4096, 1., 0.),
        (DType::BF16, 4096, 1., 0.),
        (DType::F32, 300_000, 0.1, 1e-4),
        (DType::F64, 300_000, 0.1, 1e-12),
    ] {
        for width in [1, 3] {
            let zeros = |shape: (usize, usize)| Tensor::zeros(shape, dtype, &Device::Cpu);
            let bias = Var::zeros(width, dtype, &Device::Cpu)?;
            let layer = Linear::new(zeros((width, 1))?, Some(bias.as_tensor().clone()));
            let loss = (layer.forward(&zeros((rows, 1))?)? * dy)?;
            let loss = loss.to_dtype(DType::F64)?.sum_all()?;
            let store = loss.backward()?;
            let found = store.get(&bias).expect("a gradient").to_dtype(DType::F64)?;
            let expected = rows as f64 * dy;
            for found in found.to_vec1::<f64>()? {
                let off = (found - expected).abs() / expected;
                assert!(
                    off <= tolerance,
                    "{dtype:?} of {width}: {found}, not {expected}"
                );
            }
        }
    }
    // Three dimensions, and no rows or no columns.
    for shape in [[2, 3, 5], [0, 3, 5], [2, 3, 0]] {
        let bias = Var::zeros(shape[2], DType::F32, &Device::Cpu)?;
        let weight = Tensor::zeros((shape[2], 4), DType::F32, &Device::Cpu)?;
        let layer = Linear::new(weight, Some(bias.as_tensor().clone()));
        let xs = Tensor::zeros((shape[0], shape[1], 4), DType::F32, &Device::Cpu)?;
        let store = layer.forward(&xs)?.sum_all()?.backward()?;
        let gradient = store.get(&bias).expect("a gradient").to_vec1::<f32>()?;
        let expected = vec![(shape[0] * shape[1]) as f32; shape[2]];
        assert_eq!(gradient, expected, "{shape:?}");
    }
    Ok(())
}

#[test]
fn odd_inputs_are_candles() -> Result<()> {
    let layer = |bias: &[usize]| Linear::new(numbers(&[4, 6], 1), Some(numbers(bias, 2)));
    // A bias that broadcasts in another way.
    let x = numbers(&[3, 6], 1);
    let theirs =
        |bias: &[usize]| candle_nn::Linear::new(numbers(&[4, 6], 1), Some(numbers(bias, 2)));
    same_bits(&layer(&[3, 1]).forward(&x)?, &theirs(&[3, 1]).forward(&x)?)?;
    for shape in [&[6][..], &[3, 5], &[2, 2, 2, 3, 6]] {
        assert!(
            layer(&[4]).forward(&numbers(shape, 1)).is_err(),
            "{shape:?}"
        );
    }
    assert!(layer(&[3]).forward(&x).is_err());
    let empty = Tensor::zeros((0, 6), DType::F64, &Device::Cpu)?;
    assert_eq!(layer(&[4]).forward(&empty)?.dims(), [0, 4]);
    Ok(())
}

#[test]
fn constructors_name_and_initialize_as_candles_do() -> Result<()> {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let with = candle_headroom_nn::linear(100, 4, vb.pp("a"))?;
    let without = candle_headroom_nn::linear_b(100, 4, false, vb.pp("b"))?;
    assert_eq!(
        (with.weight().dims(), without.weight().dims()),
        (&[4, 100][..], &[4, 100][..])
    );
    assert!(without.bias().is_none());
    let data = varmap.data().lock().expect("a lock");
    let mut names: Vec<_> = data.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["a.bias", "a.weight", "b.weight"]);
    // The bias is uniform within 1 / sqrt(100).
    let bias = with
        .bias()
        .expect("a bias")
        .abs()?
        .max(0)?
        .to_scalar::<f32>()?;
    assert!(bias > 0. && bias <= 0.1, "{bias}");
    Ok(())
}
