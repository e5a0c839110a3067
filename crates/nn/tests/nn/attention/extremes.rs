//! Scores whose maximum is far from 0.

use candle_core::{DType, Device, Result, Tensor};
use candle_headroom_nn::{Attention, attention};

use super::{Plain, coarse, inputs};
use crate::check::{Strides, difference, differentiate, rounding};

/// The first query sees some keys, the second none but by finite numbers, the third all.
fn hidden_by(number: f64) -> Result<Tensor> {
    let mut values = [0f64; 15];
    values[1..3].fill(number);
    values[5..10].fill(number);
    Tensor::new(&values, &Device::Cpu)?.reshape((3, 5))
}

fn coarse_inputs(sizes: [usize; 7]) -> Result<Vec<Tensor>> {
    let coarse = |x: Tensor| (x * 4.)?.round()? / 4.;
    inputs(sizes).into_iter().map(coarse).collect()
}

/// Asserts that attention and its gradients agree with plain operations in the same type. The fourth input, or else `mask`, is the mask.
fn compare(dtype: DType, inputs: &[Tensor], mask: &Tensor) -> Result<()> {
    let (mask, typed) = (mask.to_dtype(dtype)?, inputs.iter());
    let typed = typed.map(|x| x.to_dtype(dtype));
    let typed = typed.collect::<Result<Vec<_>>>()?;
    let mask_of = |x: &[Tensor]| x.get(3).unwrap_or(&mask).clone();
    let ours = |x: &[Tensor]| {
        let options = Attention::default().mask(&mask_of(x));
        attention(&x[0], &x[1], &x[2], &options)
    };
    let plain = |x: &[Tensor]| {
        let plain = Plain {
            mask: Some(mask_of(x)),
            ..Plain::default()
        };
        plain.run(&x[0], &x[1], &x[2])
    };
    let (output, gradients) = differentiate(&ours, &typed, Strides::Contiguous)?;
    let (expected, plain) = differentiate(&plain, &typed, Strides::Contiguous)?;
    let found = [vec![output], gradients].concat();
    for (index, (found, plain)) in found
        .iter()
        .zip([vec![expected], plain].concat())
        .enumerate()
    {
        let off = difference(found, &plain);
        let (learned, least) = (inputs.len() > 3, mask.min_all()?);
        assert!(
            // Exponents of scores of thousands have lost as many digits; a lost ln Σ shows as 2e-4.
            off <= 30. * rounding(dtype),
            "{dtype:?}, learned: {learned}, a mask from {least}: the output or gradient {index} is {off:e} off"
        );
    }
    Ok(())
}

/// The reference has the type of the inputs: what is left of the scores depends on it. Sums of coarse numbers do not.
#[test]
fn rows_hidden_by_a_finite_number_agree_with_plain_operations() -> Result<()> {
    let numbers = [-1e4, -1e9, f32::MIN.into()];
    let wide = [numbers.as_slice(), &[-1e300, f64::MIN]].concat();
    for (dtype, numbers) in [(DType::F32, numbers.to_vec()), (DType::F64, wide)] {
        for number in numbers {
            let mut inputs = coarse_inputs([2, 4, 2, 3, 5, 4, 4])?;
            let mask = hidden_by(number)?;
            compare(dtype, &inputs, &mask)?;
            inputs.push(mask.clone());
            compare(dtype, &inputs, &mask)?;
        }
    }
    Ok(())
}

#[test]
fn rows_hidden_by_a_huge_number_get_the_mean_of_values() -> Result<()> {
    for (dtype, number) in [
        (DType::F32, -1e9),
        (DType::F32, f32::MIN.into()),
        (DType::F64, f64::MIN),
    ] {
        let inputs = coarse_inputs([2, 4, 4, 3, 5, 4, 4])?;
        let [q, k, v] = [0, 1, 2].map(|at: usize| inputs[at].to_dtype(dtype));
        let (q, k, v) = (q?, k?, v?);
        let mask = hidden_by(number)?.to_dtype(dtype)?;
        let y = attention(&q, &k, &v, &Attention::default().mask(&mask))?;
        let y = y.narrow(2, 1, 1)?.to_dtype(DType::F64)?;
        let off = difference(&y, &v.mean_keepdim(2)?.to_dtype(DType::F64)?);
        assert!(off < 1e-6, "{dtype:?}, {number:e}: {off:e} off");
    }
    Ok(())
}

/// All scores are exact in f32 and about 4096, where numbers of f32 are 0.0005 apart.
#[test]
fn large_scores_agree_with_plain_operations() -> Result<()> {
    let mut inputs = coarse_inputs([2, 4, 2, 3, 5, 15, 4])?;
    for x in &mut inputs[..2] {
        let (batch, heads, rows, _) = x.dims4()?;
        let large = Tensor::full(128f64, (batch, heads, rows, 1), x.device())?;
        *x = Tensor::cat(&[&large, x], 3)?;
    }
    let mask = coarse(&[3, 5], 4)?;
    for dtype in [DType::F32, DType::F64] {
        compare(dtype, &inputs, &mask)?;
    }
    inputs.push(mask.clone());
    for dtype in [DType::F32, DType::F64] {
        compare(dtype, &inputs, &mask)?;
    }
    Ok(())
}
