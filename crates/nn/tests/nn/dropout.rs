use candle_core::{DType, Device, ModuleT, Result, Tensor, Var};
use candle_headroom_nn::{self as nn, Dropout, ops};

use crate::check::{FLOATS, same_bits};

const LEN: usize = 200_000;

/// Which elements a call keeps, as 0 or 1.
fn mask(len: usize, drop_p: f32) -> Result<Vec<f64>> {
    let ones = Tensor::ones(len, DType::F64, &Device::Cpu)?;
    let kept = ops::dropout(&ones, drop_p)?.gt(0.)?.to_dtype(DType::F64)?;
    kept.to_vec1()
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let len = values.len() as f64;
    values.sum::<f64>() / len
}

/// The correlation of two series of zeros and ones, in standard deviations of that of independent ones.
fn correlation(a: &[f64], b: &[f64], keep: f64) -> f64 {
    let products = a.iter().zip(b).map(|(a, b)| (a - keep) * (b - keep));
    mean(products) / (keep * (1. - keep)) * (a.len() as f64).sqrt()
}

#[test]
fn a_fraction_is_dropped_and_the_mean_stays() -> Result<()> {
    for drop_p in [0.05f32, 0.1, 0.5, 0.9, 0.999] {
        let keep = 1. - f64::from(drop_p);
        let kept = nn::seeded(1, || mask(LEN, drop_p))?;
        let deviation = (keep * (1. - keep) / LEN as f64).sqrt();
        // Five standard deviations.
        let off = (mean(kept.into_iter()) - keep).abs() / deviation;
        assert!(off < 5., "{drop_p}: {off} standard deviations");
        let ones = Tensor::ones(10, DType::F32, &Device::Cpu)?;
        for value in ops::dropout(&ones, drop_p)?.to_vec1::<f32>()? {
            assert!(value == 0. || value == (1. / keep) as f32, "{value}");
        }
    }
    Ok(())
}

#[test]
fn elements_calls_and_seeds_are_independent() -> Result<()> {
    for drop_p in [0.1f32, 0.5] {
        let keep = 1. - f64::from(drop_p);
        let [first, second] = nn::seeded(1, || [mask(LEN, drop_p), mask(LEN, drop_p)]);
        let (first, second, other) = (first?, second?, nn::seeded(2, || mask(LEN, drop_p))?);
        let mut compared = vec![("calls", correlation(&first, &second, keep))];
        compared.push(("seeds", correlation(&first, &other, keep)));
        for lag in [1, 2, 3, 4, 8, 31, 32, 33, 64, 1000] {
            compared.push((
                "elements",
                correlation(&first[lag..], &first[..LEN - lag], keep),
            ));
        }
        for (what, off) in compared {
            assert!(off.abs() < 5., "{what}: {off} standard deviations");
        }
    }
    Ok(())
}

#[test]
fn the_backward_pass_has_the_same_mask() -> Result<()> {
    for dtype in FLOATS {
        for len in [1, 31, 32, 33, 10_000] {
            let xs = Var::ones(len, dtype, &Device::Cpu)?;
            let ys = ops::dropout(&xs, 0.3)?;
            let store = ys.sum_all()?.backward()?;
            same_bits(store.get(&xs).expect("a gradient"), &ys)?;
        }
    }
    Ok(())
}

#[test]
fn strided_inputs_and_the_shape_do_not_change_the_mask() -> Result<()> {
    let xs = Tensor::rand(1f32, 2., (30, 40), &Device::Cpu)?;
    let expected = ops::dropout_with_seed(&xs, 0.5, 9)?;
    let strided = xs.t()?.contiguous()?.t()?;
    same_bits(&ops::dropout_with_seed(&strided, 0.5, 9)?, &expected)?;
    let flat = ops::dropout_with_seed(&xs.flatten_all()?, 0.5, 9)?;
    same_bits(&flat, &expected.flatten_all()?)
}

#[test]
fn dropped_infinities_are_zero() -> Result<()> {
    let xs = Tensor::full(f32::INFINITY, 100, &Device::Cpu)?;
    let ys = ops::dropout(&xs, 0.5)?.to_vec1::<f32>()?;
    assert!(ys.iter().all(|y| *y == 0. || *y == f32::INFINITY));
    assert!(ys.contains(&0.));
    Ok(())
}

fn bits() -> Vec<u32> {
    let ones = Tensor::ones(64, DType::F32, &Device::Cpu).expect("ones");
    let ys = ops::dropout(&ones, 0.5).and_then(|ys| ys.to_vec1::<f32>());
    ys.expect("a mask").into_iter().map(f32::to_bits).collect()
}

#[test]
fn a_scope_gives_the_same_masks_again() {
    let three = || [bits(), bits(), bits()];
    let [a, b, c] = nn::seeded(5, three);
    assert_eq!(nn::seeded(5, three), [a.clone(), b.clone(), c.clone()]);
    assert!(a != b && b != c && a != c);
    assert_ne!(nn::seeded(6, bits), a);
    // Without a scope each call draws its own.
    assert!(bits() != bits());
    // A scope within begins anew, and the outer one goes on.
    nn::seeded(5, || {
        assert_eq!(bits(), a);
        nn::seeded(5, || assert_eq!([bits(), bits()], [a.clone(), b.clone()]));
        assert_eq!(bits(), b);
        // Another thread is outside.
        let elsewhere = std::thread::spawn(bits).join().expect("a mask");
        assert!(elsewhere != a && elsewhere != b && elsewhere != c);
        assert_eq!(bits(), c);
    });
}

#[test]
fn a_panic_ends_its_scope_only() {
    let expected = nn::seeded(5, || [bits(), bits()]);
    let found = nn::seeded(5, || {
        let first = bits();
        let panicked = std::panic::catch_unwind(|| nn::seeded(1, || panic!("on purpose")));
        assert!(panicked.is_err());
        [first, bits()]
    });
    assert_eq!(found, expected);
    assert!(bits() != expected[0], "the scope has ended");
}

#[test]
fn edges_of_the_probability() -> Result<()> {
    let xs = Tensor::ones(10, DType::F32, &Device::Cpu)?;
    same_bits(&ops::dropout(&xs, 0.)?, &xs)?;
    // Without the backtrace.
    let message = |error: candle_core::Error| error.to_string().lines().next().map(str::to_owned);
    for drop_p in [1., 1.5, -0.1, f32::NAN, f32::INFINITY] {
        let theirs = candle_nn::ops::dropout(&xs, drop_p).map_err(message);
        let ours = ops::dropout(&xs, drop_p).map_err(message);
        assert_eq!(ours.expect_err("an error"), theirs.expect_err("an error"));
    }
    let layer = Dropout::new(0.5);
    same_bits(&layer.forward(&xs, false)?, &xs)?;
    let trained = nn::seeded(1, || layer.forward_t(&xs, true))?;
    same_bits(&trained, &nn::seeded(1, || ops::dropout(&xs, 0.5))?)?;
    // The layer checks its probability when it is used.
    assert!(Dropout::new(1.).forward(&xs, true).is_err());
    let empty = Tensor::zeros((0, 4), DType::F32, &Device::Cpu)?;
    assert_eq!(ops::dropout(&empty, 0.5)?.dims(), [0, 4]);
    Ok(())
}
